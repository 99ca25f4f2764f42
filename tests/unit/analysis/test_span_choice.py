"""The choice of spans by name and category."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analysis.tables.span_choice import SpanChoice
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import empty_block

NAMES = st.sampled_from(["forward", "backward", "all_reduce", "aten::mm"])
CATEGORIES = st.sampled_from(["", "cpu_op", "user_annotation"])


@given(st.lists(st.lists(st.tuples(NAMES, CATEGORIES), max_size=20), max_size=4))
def test_each_span_is_judged_by_both(batches: list[list[tuple[str, str]]]) -> None:
    """Also names that have several categories, in any order; each pair is judged once."""
    judged: list[tuple[str, str]] = []

    def chosen(name: str, category: str) -> bool:
        judged.append((name, category))
        return (name == "forward") != (category == "cpu_op")

    choice = SpanChoice(chosen)
    for pairs in batches:
        block: Any = empty_block(len(pairs))
        block["name"] = [strings.intern(name) for name, _ in pairs]
        block["category"] = [strings.category(category) for _, category in pairs]
        wanted = [(name == "forward") != (category == "cpu_op") for name, category in pairs]
        assert np.array_equal(choice.of(block), np.array(wanted, bool))
    assert len(judged) == len(set(judged))

"""Ancestors as indices, against the plain way up."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope.exporters.otlp.selection import NONE, UNKNOWN, nearest, parents
from tests.support.blocks import span_block


@given(st.lists(st.tuples(st.integers(-2, 14), st.booleans(), st.booleans()), min_size=1, max_size=15))
def test_the_nearest_is_what_walking_finds(nodes: list[tuple[int, bool, bool]]) -> None:
    """For any parents, circles included: those who are in one have no ancestor, and who hangs on them neither."""
    count = len(nodes)
    parent = np.array([up if up < count else UNKNOWN for up, _, _ in nodes], np.int64)
    sent = np.array([flag for _, flag, _ in nodes])
    asking = np.array([flag for _, _, flag in nodes]) | sent

    def walk(index: int) -> int:
        at = int(parent[index])
        for _ in range(count):
            if at < 0 or sent[at]:
                return at
            at = int(parent[at])
        return NONE

    found = nearest(parent, sent, asking)
    for index in np.flatnonzero(asking & ~sent).tolist():
        assert found[index] in (walk(index), NONE)
    for index in np.flatnonzero(sent).tolist():
        seen, at = {index}, walk(index)
        while at >= 0 and at not in seen:
            seen.add(at)
            at = walk(at)
        assert found[index] == (walk(index) if at < 0 else NONE)


def test_parents_of_parts_and_strangers() -> None:
    """Of a span in parts the one that began last before the child counts; who is its own parent has none."""
    block = span_block((0, 10), (20, 30), (22, 25), (5, 6), (7, 8), (9, 9))
    block["id"] = [1, 1, 2, 3, 4, 5]
    block["parent"] = [0, 0, 1, 1, 4, 77]
    assert parents(block, np.ones(6, np.bool_)).tolist() == [NONE, NONE, 1, 0, NONE, UNKNOWN]

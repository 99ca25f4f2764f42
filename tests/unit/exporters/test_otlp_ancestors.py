"""Ancestors as indices, against the plain way up."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope.exporters.otlp.selection import NONE, UNKNOWN, nearest, parents
from tests.support.blocks import span_block


@given(st.lists(st.tuples(st.integers(-2, 14), st.booleans(), st.booleans()), min_size=1, max_size=15))
def test_the_nearest_is_what_walking_finds(nodes: list[tuple[int, bool, bool]]) -> None:
    """For any parents without circles."""
    parent = np.array([up if up < index else UNKNOWN for index, (up, _, _) in enumerate(nodes)], np.int64)
    sent = np.array([flag for _, flag, _ in nodes])
    asking = np.array([flag for _, _, flag in nodes]) | sent

    def walk(index: int) -> int:
        at = int(parent[index])
        while at >= 0 and not sent[at]:
            at = int(parent[at])
        return at

    found = nearest(parent, sent, asking)
    assert [found[index] for index in np.flatnonzero(asking)] == [
        walk(index) for index in np.flatnonzero(asking).tolist()
    ]


def test_parents_of_parts_and_strangers() -> None:
    """Of a span in parts the one that began last before the child counts; who is its own parent has none."""
    block = span_block((0, 10), (20, 30), (22, 25), (5, 6), (7, 8), (9, 9))
    block["id"] = [1, 1, 2, 3, 4, 5]
    block["parent"] = [0, 0, 1, 1, 4, 77]
    assert parents(block, np.ones(6, np.bool_)).tolist() == [NONE, NONE, 1, 0, NONE, UNKNOWN]

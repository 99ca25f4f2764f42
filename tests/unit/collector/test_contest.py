"""Who came last, and whether that is sure: compared with the plain way to say it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope.collector.merge.order import decide

ENTRIES = st.lists(
    st.tuples(st.integers(-2, 3), st.integers(0, 4), st.integers(0, 1000), st.sampled_from([0.0, 1.0, 50.0, np.inf])),
    max_size=40,
    unique_by=lambda row: (row[0], row[1]),
)
CLOCKS = st.lists(st.integers(0, 2), min_size=5, max_size=5)


@given(ENTRIES, CLOCKS)
def test_the_last_is_sure_only_if_all_others_surely_came_before(
    rows: list[tuple[int, int, int, float]], clocks: list[int]
) -> None:
    """Two that read one clock are exactly in order; else the distance must be more than both may be off."""
    rows.sort()
    groups, members, at = (np.array([row[index] for row in rows], np.int64) for index in range(3))
    errors = np.array([row[3] for row in rows], np.float64)
    found, outcome = decide(groups, members, at, errors, np.array(clocks, np.int64))
    contests = {group: [row for row in rows if row[0] == group] for group in {row[0] for row in rows}}
    assert found.tolist() == sorted(group for group, its in contests.items() if len(its) > 1)
    for index, group in enumerate(found.tolist()):
        its = contests[group]
        _, last, late, error = next(row for row in its if row[1] == outcome.last[index])
        assert late == max(row[2] for row in its)
        assert outcome.spread[index] == late - min(row[2] for row in its)
        assert outcome.waited[index] == sum(late - row[2] for row in its) / (len(its) - 1)
        surely = all(
            late - row[2] > (0 if clocks[row[1]] == clocks[last] else error + row[3]) for row in its if row[1] != last
        )
        assert outcome.sure[index] == surely

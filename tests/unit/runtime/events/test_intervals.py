"""Cutting events at borders loses nothing inside and keeps nothing outside."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stepscope.runtime.events.intervals import Interval, clip, ends, touching, without
from stepscope.runtime.events.record import Flag
from tests.support.blocks import instant_block, span_block

TIMES = st.integers(0, 200)


def overlap(begin: int, end: int, interval: Interval) -> int:
    return max(0, min(end, interval[1]) - max(begin, interval[0]))


@st.composite
def apart(draw: st.DrawFn) -> list[Interval]:
    """Intervals in order and apart."""
    times = sorted(draw(st.sets(TIMES, max_size=8)))
    return list(zip(times[::2], times[1::2], strict=False))


@given(st.lists(st.tuples(TIMES, TIMES).map(lambda pair: (min(pair), max(pair)))), apart())
def test_the_parts_of_spans_are_their_overlap(spans: list[Interval], intervals: list[Interval]) -> None:
    """Time inside the intervals is kept to the nanosecond; nothing outside is."""
    block = span_block(*spans)
    parts = clip(block, intervals)
    for number, (begin, end) in enumerate(spans, start=1):
        mine = parts[parts["id"] == number]
        assert int(mine["dur"].sum()) == sum(overlap(begin, end, interval) for interval in intervals)
        assert int(mine["self_dur"].sum()) <= end - begin
        assert (mine["self_dur"] <= mine["dur"]).all()
        cut = [part for part in mine if int(part["dur"]) < end - begin]
        assert all(int(part["flags"]) & Flag.CLIPPED for part in cut)
    for part in parts:
        assert any(lo <= part["ts"] and int(part["ts"] + part["dur"]) <= hi for lo, hi in intervals)


def test_self_time_goes_to_the_parts_in_order_and_never_grows() -> None:
    """A span of 100 ns with 30 ns of its own, cut in two parts of 20 ns, has 20 and 10."""
    parts = clip(span_block((0, 100), self_ns=30), [(0, 20), (80, 100)])
    assert parts["self_dur"].tolist() == [20, 10]


def test_instants_are_in_the_interval_that_begins_with_them() -> None:
    """The end of an interval belongs to the next one."""
    assert touching(instant_block(9, 10, 19, 20), (10, 20)).tolist() == [False, True, True, False]


def test_a_whole_span_is_untouched() -> None:
    """Nothing is flagged that was not cut."""
    part = clip(span_block((12, 15)), [(10, 20)])
    assert part["flags"].tolist() == [0]
    assert ends(part).tolist() == [15]


@given(st.tuples(TIMES, TIMES).map(lambda pair: (min(pair), max(pair))), apart())
def test_without_is_the_rest(whole: Interval, gaps: list[Interval]) -> None:
    """Each nanosecond is in the gaps or in the rest, not in both."""
    rest = without(whole, gaps)
    for at in range(*whole):
        in_gap = any(lo <= at < hi for lo, hi in gaps)
        assert any(lo <= at < hi for lo, hi in rest) != in_gap

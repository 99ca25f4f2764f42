"""Blocks of events: cut at borders, and surveyed in one native pass, which finds what numpy finds in many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.runtime import _core
from stepscope.runtime.events import strings
from stepscope.runtime.events.intervals import Interval, clip, ends, touching, touching_any, without
from stepscope.runtime.events.record import (
    EVENT_DTYPE,
    QUIET,
    Block,
    Flag,
    Kind,
    empty_block,
    own_heap,
    without_ids,
)
from stepscope.runtime.events.survey import count_in, of_kind, parts_in, survey
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
        assert all(bool(int(part["flags"]) & Flag.CLIPPED) == (int(part["dur"]) < end - begin) for part in mine)
    for part in parts:
        assert any(lo <= part["ts"] and int(part["ts"] + part["dur"]) <= hi for lo, hi in intervals)


def test_self_time_goes_to_the_parts_in_order_and_never_grows() -> None:
    """A span of 100 ns with 30 ns of its own, cut in two parts of 20 ns, has 20 and 10."""
    parts = clip(span_block((0, 100), self_ns=30), [(0, 20), (80, 100)])
    assert parts["self_dur"].tolist() == [20, 10]


def test_instants_are_in_the_interval_that_begins_with_them() -> None:
    """The end of an interval belongs to the next one."""
    assert touching(instant_block(9, 10, 19, 20), (10, 20)).tolist() == [False, True, True, False]


@given(st.tuples(TIMES, TIMES).map(lambda pair: (min(pair), max(pair))), apart())
def test_without_is_the_rest(whole: Interval, gaps: list[Interval]) -> None:
    """Each nanosecond is in the gaps or in the rest, not in both."""
    rest = without(whole, gaps)
    for at in range(*whole):
        in_gap = any(lo <= at < hi for lo, hi in gaps)
        assert any(lo <= at < hi for lo, hi in rest) != in_gap


@given(st.lists(st.integers(0, 20), unique=True), st.lists(st.integers(0, 20)))
def test_without_ids(few: list[int], many: list[int]) -> None:
    """Those that are among the others are left out, whatever the order."""
    left, right = empty_block(len(few)), empty_block(len(many))
    left["id"], right["id"] = few, many
    assert without_ids(left, right)["id"].tolist() == [number for number in few if number not in many]


CATEGORIES = ["cpu_op", "gc", QUIET[0]]
ROW = st.tuples(
    st.integers(0, 30),
    st.integers(0, 20),
    st.sampled_from(list(Kind)),
    st.sampled_from(CATEGORIES),
    st.integers(0, 3),
    st.booleans(),
)
INTERVALS = st.lists(st.integers(-5, 60), min_size=2, max_size=8, unique=True).map(
    lambda borders: [
        (first, last) for first, last in zip(sorted(borders)[::2], sorted(borders)[1::2], strict=False) if first < last
    ]
)


def block_of(rows: list[tuple[Any, ...]]) -> Block:
    """A block of (ts, dur, kind, category, bytes of arguments, inline) each; a gap counts its place in the block."""
    block = empty_block(len(rows))
    for place, (row, (ts, dur, kind, category, size, inline)) in enumerate(zip(block, rows, strict=True)):
        row["ts"], row["dur"], row["kind"], row["category"] = ts, dur, int(kind), strings.category(category)
        row["args_len"], row["flags"], row["id"] = size, int(Flag.ARG_INLINE) if inline else 0, place
    return block


@given(st.lists(ROW, min_size=1, max_size=40))
def test_counts_and_times(rows: list[tuple[Any, ...]]) -> None:
    """Operators are counted apart, gaps add up, and quiet events do not make a block loud."""
    block = block_of(rows)
    found = survey(block)
    low = block["category"] == strings.category("cpu_op")
    quiet = block["category"] == strings.category(QUIET[0])
    kind = block["kind"]
    assert (found.events, found.first_ns, found.last_ns) == (len(rows), block["ts"].min(), block["ts"].max())
    assert found.end_ns == ends(block).max()
    assert found.operators == low.sum()
    for name, which in (("spans", Kind.SPAN), ("steps", Kind.STEP), ("gaps", Kind.GAP)):
        assert getattr(found, name) == ((kind == int(which)) & ~low).sum()
    assert found.spans + found.steps + found.gaps + found.others + found.operators == found.events
    in_heap = (block["args_len"] > 0) & (block["flags"] & int(Flag.ARG_INLINE) == 0)
    assert found.arguments == (in_heap & ~low).sum()
    assert found.lost == block["id"][kind == int(Kind.GAP)].sum()
    assert found.loud == (~quiet & (kind != int(Kind.STEP))).sum()
    if (~quiet).any():
        assert found.loud_last_ns == block["ts"][~quiet].max()
    programs = ~quiet & (kind != int(Kind.STEP))
    if programs.any():
        assert found.program_last_ns == block["ts"][programs].max()


@given(st.lists(ROW, max_size=40), INTERVALS)
def test_events_in_intervals(rows: list[tuple[Any, ...]], intervals: list[tuple[int, int]]) -> None:
    """An event lies in an interval if a part of it does, and where it begins if it has no duration."""
    block = block_of(rows)
    counted = block[block["kind"] != int(Kind.GAP)]
    assert count_in(block, intervals) == touching_any(counted, intervals).sum()
    for interval in intervals:
        assert parts_in(block, interval).tobytes() == block[touching(block, interval)].tobytes()
    for kind in Kind:
        assert of_kind(block, kind).tobytes() == block[block["kind"] == int(kind)].tobytes()


@given(st.lists(ROW, max_size=40), st.lists(st.integers(0, 30), min_size=1, max_size=9, unique=True))
def test_events_get_their_steps(rows: list[tuple[Any, ...]], begins: list[int]) -> None:
    """The step that was the latest when an event began; the first one's if none was. The block itself does not change."""
    block = block_of(rows)
    times = np.array(sorted(begins), np.int64)
    numbers = np.arange(len(times), dtype=np.int32) * 10
    numbered, first_step, last_step = _core.with_steps(block, times, numbers)
    copied: Block = np.frombuffer(numbered, block.dtype)
    wanted = numbers[np.maximum(np.searchsorted(times, block["ts"], side="right") - 1, 0)]
    assert copied["step"].tolist() == wanted.tolist()
    assert (block["step"] == -1).all()
    block["step"] = wanted
    assert copied.tobytes() == block.tobytes()
    if rows:
        found = survey(copied)
        assert (first_step, last_step) == (found.first_step, found.last_step)
    changed = block_of(rows)
    assert _core.with_steps(changed, times, numbers, True)[0] is changed
    assert changed.tobytes() == block.tobytes()


@given(st.lists(ROW, max_size=40), st.integers(0, 9))
def test_the_range_of_arguments_in_a_heap(rows: list[tuple[Any, ...]], before: int) -> None:
    """From the first to the last byte of those in the heap; a copy is moved to the heap's new begin, the block itself is not."""
    block = block_of(rows)
    block["args_at"] = before + np.cumsum([0, *block["args_len"]])[:-1]
    in_heap = block[(block["args_len"] > 0) & (block["flags"] & int(Flag.ARG_INLINE) == 0)]
    first, end, size = _core.heap_range(block)
    assert size == in_heap["args_len"].sum()
    if len(in_heap):
        assert (first, end) == (in_heap["args_at"].min(), (in_heap["args_at"] + in_heap["args_len"]).max())
    args = bytes(range(200))
    part, heap = own_heap(block, args)
    assert [bytes(heap[at : at + n]) for at, n in arguments(part)] == [args[at : at + n] for at, n in arguments(block)]
    assert part["ts"].tolist() == block["ts"].tolist() and len(heap) == end - first


def arguments(block: Block) -> list[tuple[int, int]]:
    """Where the arguments in the heap begin, and their lengths."""
    in_heap = block[(block["args_len"] > 0) & (block["flags"] & int(Flag.ARG_INLINE) == 0)]
    places: list[tuple[int, int]] = list(zip(in_heap["args_at"].tolist(), in_heap["args_len"].tolist(), strict=True))
    return places


MARKS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 5)), max_size=8)


@given(MARKS, st.integers(-1, 90))
def test_spans_of_steps(marks: list[tuple[int, int, int]], end: int) -> None:
    """A step nests on its track if the same span is open there at its begin and at that of the next one."""
    tracks, parents = [np.array([mark[at] for mark in marks], kind) for at, kind in ((0, np.uint32), (1, np.uint64))]
    begins = np.cumsum([mark[2] for mark in marks], dtype=np.int64) if marks else np.zeros(0, np.int64)
    numbers = np.arange(len(marks), dtype=np.int32) + 7
    spans: Block = np.frombuffer(_core.step_spans(begins, parents, numbers, tracks, end, 9, 5, 6), EVENT_DTYPE)
    wanted = empty_block(len(marks) if marks and end > begins[-1] else max(len(marks) - 1, 0))
    for place, row in enumerate(wanted):
        last = place + 1 == len(marks)
        nests = tracks[place] and (last or marks[place][:2] == marks[place + 1][:2])
        row["ts"], row["dur"] = begins[place], (end if last else begins[place + 1]) - begins[place]
        row["track"], row["parent"] = (tracks[place], parents[place]) if nests else (9, 0)
        row["step"], row["name"], row["category"] = numbers[place], 5, 6
        row["kind"], row["flags"] = int(Kind.SPAN), int(Flag.NUMBERED)
    assert spans.tobytes() == wanted.tobytes()


def test_steps_that_contradict_themselves() -> None:
    """Each step has a begin and a number, and there is one at least."""
    block, times = empty_block(1), np.zeros(2, np.int64)
    for missing in range(4):
        columns: list[Any] = [times, times.view(np.uint64), np.zeros(2, np.int32), np.zeros(2, np.uint32)]
        columns[missing] = columns[missing][:1]
        begins, parents, numbers, tracks = columns
        with pytest.raises(ValueError, match="each step has a begin"):
            _core.step_spans(begins, parents, numbers, tracks, 0, 0, 0, 0)
    with pytest.raises(ValueError, match="one at least"):
        _core.with_steps(block, times[:0], np.zeros(0, np.int32))
    block.flags.writeable = False
    with pytest.raises(ValueError, match="cannot be written"):
        _core.with_steps(block, times, np.zeros(len(times), np.int32), True)
    with pytest.raises(ValueError, match="a number"):
        _core.with_steps(block, times, np.zeros(1, np.int32))
    with pytest.raises(ValueError, match="whole events"):
        _core.survey(np.zeros(63, np.uint8))


@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.integers(0, 2), st.floats(-1e19, 1e19) | st.just(float("nan"))), max_size=30
    ),
    st.lists(st.integers(0, 10).map(lambda at: 2 * at), min_size=1, max_size=6, unique=True),
)
def test_readings_at_marks(readings: list[tuple[int, int, float]], marks: list[int]) -> None:
    """The latest that came with a mark, or 1 ns before; insane ones are passed over."""
    table = np.array([(ts, signal, 0) for ts, signal, _ in readings], np.int64).reshape(-1, 3)
    table[:, 2] = np.array([value for _, _, value in readings], np.float64).view(np.int64)
    marks.sort()
    found = np.frombuffer(
        _core.readings_at(table, np.array([0, 1], np.int64), np.array(marks, np.int64), 1e18), np.float64
    ).reshape(2, -1)
    for signal in (0, 1):
        for place, mark in enumerate(marks):
            near = [
                (ts, order, value)
                for order, (ts, which, value) in enumerate(readings)
                if which == signal and 0 <= mark - ts <= 1 and abs(value) < 1e18
            ]
            wanted = max(near)[2] if near else float("nan")
            assert np.array_equal(found[signal, place], wanted, equal_nan=True)

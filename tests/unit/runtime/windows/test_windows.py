"""Windows: by timestamp, whatever the order of arrival, and every event accounted for."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.runtime.events.record import Block, EventBatch, Flag, Kind, join_blocks
from stepscope.runtime.windows.open_window import STEPS, OpenWindow
from stepscope.runtime.windows.router import RECORDER, WindowRouter
from stepscope.runtime.windows.step_marks import StepMark, StepMarks, WindowEnds
from stepscope.runtime.windows.window import Step
from tests.support.blocks import gap_block, instant_block, mark_block, span_block

NONE = span_block()
SERIAL = 7


def windows(linger: int = 1000) -> WindowRouter:
    return WindowRouter(SERIAL, linger, fallback_track=99)


def close(state: WindowRouter, at: int, now: int = 0, *, cut_short: bool = False) -> None:
    state.close(WindowEnds(at, True, "", cut_short), now)


def events_of(batches: list[EventBatch], source: str = RECORDER) -> Block:
    return join_blocks([NONE, *(batch.events for batch in batches if batch.source == source)])


def finished(state: WindowRouter, open_spans: Block = NONE, now: int = 0) -> list[tuple[OpenWindow, list[EventBatch]]]:
    state.closable(now)
    return state.finish(open_spans)


def finish(
    state: WindowRouter, until: int, open_spans: Block = NONE, now: int = 0
) -> list[tuple[int, list[EventBatch]]]:
    state.watermark(RECORDER, until)
    return [(window.index, batches) for window, batches in finished(state, open_spans, now)]


def test_events_belong_to_the_window_and_step_of_their_timestamp() -> None:
    """Also when they come before the step mark's own block and out of order."""
    state = windows()
    state.open(StepMark(100, 3, 1))
    batches = state.route(RECORDER, join_blocks([mark_block(SERIAL, (200, 4)), instant_block(250, 150, 99)]), b"")
    events = events_of(batches)
    instants = events[events["kind"] == Kind.INSTANT]
    assert {int(ts): int(step) for ts, step in zip(instants["ts"], instants["step"], strict=True)} == {150: 3, 250: 4}
    assert state.statistics().outside == {RECORDER: 1}


def test_kernels_belong_to_the_window_of_their_launch() -> None:
    """Whole, in the step that ended, also where the next window has begun; what comes too late is late."""
    state = windows()
    state.add_source("device")
    state.open(StepMark(100, 3, 1))
    state.route(RECORDER, mark_block(SERIAL, (150, 4)), b"")
    close(state, 200)
    state.open(StepMark(200, 5, 1))
    batches = state.route_launched("device", span_block((190, 230), (260, 300)), b"", 200)
    events = events_of(batches, "device")
    assert {batch.window for batch in batches} == {0}
    assert events["ts"].tolist() == [190, 260] and events["dur"].tolist() == [40, 40]
    assert events["step"].tolist() == [4, 4] and not events["flags"].any()
    state.watermark("device", 200)
    ((index, _),) = finish(state, 200)
    assert index == 0
    assert state.route_launched("device", span_block((210, 220)), b"", 200) == []
    assert state.route_launched("device", span_block((50, 60)), b"", 40) == []
    found = state.statistics()
    assert (found.seen["device"], found.accepted["device"]) == (4, 2)
    assert (found.late["device"], found.outside["device"], found.dropped["device"]) == (1, 1, {"late": 1})


def test_events_that_came_after_a_window_closed_are_missing_once() -> None:
    """From the source's watermark on; what the source says of the same time later is not added."""
    state = windows(linger=50)
    state.add_source("device")
    state.open(StepMark(0, 0, 1))
    state.watermark("device", 30)
    close(state, 100, now=1000)
    assert finish(state, 500, now=1049) == []
    ((window, _),) = finished(state, NONE, 1050)
    assert window.sources_incomplete and "device" in window.reason
    assert state.route("device", instant_block(60, 70), b"") == []
    found = state.statistics()
    assert (found.late, found.dropped) == ({"device": 2}, {"device": {"late": 2}})
    assert sum(window.ledger()["device"].missing.values()) == 70
    state.source_missing("device", "it was lost", (0, 110))
    (late, lost) = state.ledger()["device"].missing.values()
    assert (late, lost) == (70, 10)


def test_a_source_that_is_missing_is_not_waited_for() -> None:
    """A backend that failed to open must not hold windows up."""
    state = windows()
    state.add_source("device")
    state.open(StepMark(0, 0, 1))
    close(state, 100)
    state.remove_source("device")
    assert len(finish(state, 100)) == 1


def test_open_spans_are_cut_at_the_window_end_and_their_record_is_no_news() -> None:
    """The window has the span as far as it went; the record that comes later is neither lost nor written twice."""
    state = windows()
    state.open(StepMark(0, 0, 1))
    close(state, 100)
    running = span_block((40, 130), first_id=5)
    ((_, batches),) = finish(state, 200, running)
    (span,) = events_of(batches)
    assert (int(span["ts"]), int(span["dur"])) == (40, 60)
    assert int(span["flags"]) & Flag.CLIPPED
    assert state.route(RECORDER, span_block((40, 180), first_id=5), b"") == []
    assert state.statistics().superseded == {RECORDER: 1}


def test_a_span_across_two_windows_is_in_both_each_with_its_part() -> None:
    """The parts add up to the span."""
    state = windows()
    state.open(StepMark(0, 0, 1))
    close(state, 100)
    state.open(StepMark(100, 1, 1))
    batches = state.route(RECORDER, span_block((80, 150)), b"")
    # An event that had begun before the window waits for one that begins in it.
    assert {batch.window: batch.events["dur"].tolist() for batch in batches} == {0: [20]}
    batches = state.route(RECORDER, span_block((120, 130), first_id=2), b"")
    assert [(batch.window, batch.events["dur"].tolist()) for batch in batches] == [(1, [50]), (1, [10])]
    assert state.statistics().accepted == {RECORDER: 2}


def test_pauses_cut_spans_drop_the_rest_and_are_events() -> None:
    """Nothing of a pause leaks into a window."""
    state = windows()
    state.open(StepMark(0, 0, 1))
    state.pause(30)
    (gap,) = state.resume(70)
    assert gap.events["dur"].tolist() == [40]
    assert gap.events["kind"].tolist() == [Kind.GAP]
    batches = state.route(RECORDER, join_blocks([span_block((10, 90)), instant_block(50)]), b"")
    assert events_of(batches)["dur"].tolist() == [20, 20]
    assert state.statistics().outside == {RECORDER: 1}


@pytest.mark.parametrize(
    ("region", "still_open", "pause", "track"),
    [
        ((5, 60), False, None, 99),  # ends in the step
        ((5, 100), False, None, 1),  # ends with the window
        ((5, 130), False, None, 1),  # is cut with the window
        ((5, 130), True, None, 1),
        ((5, 130), False, (60, 70), 99),  # is cut by a pause
        ((5, 130), True, (60, 70), 99),
        (None, False, (60, 70), 1),
    ],
)
def test_the_row_of_the_last_step(
    region: tuple[int, int] | None, still_open: bool, pause: tuple[int, int] | None, track: int
) -> None:
    """It is on the training loop's track unless the region in which it began is cut in it."""
    state = windows()
    state.open(StepMark(0, 0, 1))
    marks = mark_block(SERIAL, (30, 1))
    marks["parent"] = 5 if region else 0
    batches = state.route(RECORDER, marks, b"")
    if pause:
        state.pause(pause[0])
        state.resume(pause[1])
    close(state, 100)
    regions = span_block(region, first_id=5) if region else NONE
    # Regions that begin in the step are cut with the window.
    batches += state.route(RECORDER, join_blocks([NONE if still_open else regions, span_block((40, 120))]), b"")
    ((_, last),) = finish(state, 200, regions if still_open else NONE)
    step = events_of([*batches, *last], STEPS)[-1]
    assert (int(step["ts"]), int(step["dur"]), int(step["track"])) == (30, 70, track)
    assert int(step["parent"]) == (5 if region and track == 1 else 0)


def test_a_step_with_a_pause_in_it() -> None:
    """The pause cuts the region around it, so the step is on a row of its own; the next one is not."""
    state = windows()
    state.open(StepMark(0, 0, 1, parent=5))
    state.pause(10)
    state.resume(20)
    marks = mark_block(SERIAL, (30, 1), (40, 2))
    marks["parent"] = 5
    batches = state.route(RECORDER, marks, b"") + state.route(RECORDER, instant_block(50), b"")
    assert events_of(batches, STEPS)["track"].tolist() == [99, 1]


def test_marks_may_come_ahead_and_out_of_order() -> None:
    """Events of a drain are divided only when all of its steps are known, whichever ring they were in."""
    state = windows()
    state.open(StepMark(0, 0, 1))
    state.add_marks(mark_block(SERIAL, (70, 2), (30, 1)))
    batches = state.route(RECORDER, join_blocks([instant_block(80, 40, 10), mark_block(SERIAL, (30, 1))]), b"")
    events = events_of(batches)
    assert events[events["kind"] == Kind.INSTANT]["step"].tolist() == [2, 1, 0]
    batches += state.route(RECORDER, mark_block(SERIAL, (70, 2)), b"")
    assert events_of(batches, STEPS)["dur"].tolist() == [30, 40]


@pytest.mark.parametrize(("event_at", "end"), [(None, 50), (55, 60)])
def test_time_after_the_last_call_of_step_is_no_step(event_at: int | None, end: int) -> None:
    """A loop that calls step() at its end begins a step that never comes. Events after that are in the window."""
    state = windows()
    state.open(StepMark(0, 0, 1))
    state.route(RECORDER, mark_block(SERIAL, (50, 1)), b"")
    if event_at is not None:
        state.route(RECORDER, instant_block(event_at), b"")
    close(state, 60, cut_short=True)
    state.watermark(RECORDER, 100)
    ((window, batches),) = finished(state)
    assert window.steps() == (Step(0, 0, 50),) and window.interval == (0, end)
    spans = [batch.events for batch in batches if (batch.events["kind"] == Kind.SPAN).any()]
    assert [block["dur"].tolist() for block in spans] in ([], [[50]])


def test_events_that_were_lost_follow_the_last_call_of_step() -> None:
    """So the window goes on to their end."""
    state = windows()
    state.open(StepMark(0, 0, 1))
    state.route(RECORDER, join_blocks([mark_block(SERIAL, (50, 1)), gap_block(40, 59, dropped=3)]), b"")
    close(state, 60, cut_short=True)
    state.watermark(RECORDER, 100)
    ((window, _),) = finished(state)
    assert window.interval == (0, 60) and window.steps() == (Step(0, 0, 50),)


@given(
    st.lists(st.tuples(st.integers(0, 120), st.integers(0, 40)), max_size=40),
    st.lists(st.integers(1, 119), min_size=1, max_size=6, unique=True),
    st.randoms(use_true_random=False),
)
def test_every_event_is_accounted_for(spans: list[tuple[int, int]], borders: list[int], random: object) -> None:
    """seen = accepted + outside + late + superseded, and each part of a span is in the window that covers it."""
    state = windows()
    edges = sorted(borders)
    recorded = Counter[int]()
    pending = [span_block((ts, ts + dur), first_id=n + 1) for n, (ts, dur) in enumerate(spans)]
    for number, (begin, end) in enumerate(pairwise([0, *edges])):
        state.open(StepMark(begin, number, 1))
        close(state, end)
    for block in pending:
        for batch in state.route(RECORDER, block, b""):
            recorded[batch.window] += int(batch.events["dur"].sum())
            assert (batch.events["step"] == batch.window).all()
    stats = state.statistics()
    state.watermark(RECORDER, 1000)
    for window, batches in finished(state):
        recorded[window.index] += sum(int(batch.events["dur"].sum()) for batch in batches if batch.source == RECORDER)
    assert stats.seen.get(RECORDER, 0) == len(spans)
    assert stats.accepted.get(RECORDER, 0) + stats.outside.get(RECORDER, 0) == len(spans)
    for number, (begin, end) in enumerate(pairwise([0, *edges])):
        expected = sum(max(0, min(ts + dur, end) - max(ts, begin)) for ts, dur in spans)
        assert recorded[number] == expected


@given(
    st.lists(st.integers(0, 1000), min_size=1, max_size=30, unique=True),
    st.lists(st.integers(-10, 1100), max_size=60),
)
def test_the_step_of_any_time(marks: list[int], times: list[int]) -> None:
    """The latest step that began by then; before the first one, the first. The order of the times does not matter."""
    first, *rest = sorted(marks)
    steps = StepMarks(StepMark(first, 0, 1))
    steps.add(join_blocks([NONE, *(mark_block(SERIAL, (ts, number)) for number, ts in enumerate(rest, 1))]), 2000)
    wanted = [max(sum(mark <= time for mark in marks) - 1, 0) for time in times]
    assert steps.steps_at(np.array(times, np.int64)).tolist() == wanted

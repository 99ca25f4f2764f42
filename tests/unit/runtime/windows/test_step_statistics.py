"""Statistics of steps: the same while a run goes on and afterwards, in fixed memory, and parts that add up."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.record import Block, Kind, empty_block, join_blocks
from stepscope.runtime.events.tracks import TrackKind
from stepscope.runtime.windows import step_facts, window_tables
from stepscope.runtime.windows.open_window import RECORDER
from stepscope.runtime.windows.router import WindowRouter
from stepscope.runtime.windows.step_facts import FACTS_DTYPE, SIGNAL, SIGNALS, Phase, StepFactsBuilder
from stepscope.runtime.windows.step_marks import StepMark, WindowEnds
from stepscope.runtime.windows.step_parts import QUEUED, RUNNING, UNCOVERED, WAITING, durations, parts_of
from stepscope.runtime.windows.step_statistics import (
    FIRST_STEPS,
    LAST_STEPS,
    OPTIMIZER,
    STEPS_END,
    StepTotals,
    startup_step,
    statistics_of,
)
from stepscope.runtime.windows.summary import Summary
from stepscope.runtime.windows.window_tables import WindowTable, count_together

SERIAL = 3
STEP_AND_SIGNALS = (Kind.STEP, Kind.COUNTER)
TRACK, OTHER = (tracks.new(TrackKind.THREAD, os.getpid(), tid, "thread") for tid in (7, 8))
"""Of this process: earlier tests may have read tracks of other processes."""
NAMES = (
    ("garbage collection", "gc"),
    ("gloo:all_reduce", "user_annotation"),
    ("torch.save", "checkpoint"),
    ("fsync", "forced write"),
    ("enumerate(DataLoader)#x.__next__", "user_annotation"),
    ("Optimizer.step#SGD.step", "user_annotation"),
    ("autograd::engine::evaluate_function: MulBackward0", "cpu_op"),
    ("cudaMemcpyAsync", "cuda_runtime"),
    ("aten::mm", "cpu_op"),
    ("suspended", "task"),
    ("work", "user_annotation"),
    ("aten::mm", "kernel"),
    ("sgemm", "kernel"),
    ("f (x.py:3)", "python_function"),
)


def event(kind: Kind, ts: int, track: int = TRACK, **values: Any) -> Block:
    """One event."""
    block: Any = empty_block(1)
    block["kind"], block["ts"], block["track"] = kind, ts, track
    for name, value in values.items():
        block[name] = value
    return block  # type: ignore[no-any-return]


def span(begin: int, length: int, which: int, track: int) -> Block:
    """A span of one of `NAMES`."""
    name, category = NAMES[which]
    return event(
        Kind.SPAN,
        begin,
        track,
        dur=length,
        self_dur=length,
        name=strings.intern(name),
        category=strings.category(category),
    )


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[int], list[Block], int]:
    """Begins of steps, what was recorded of them in the order of its ends, and when the last one ended."""
    # A reading 1 ns before a mark belongs to it, so a step is longer.
    lengths = draw(st.lists(st.integers(2, 400), min_size=1, max_size=40))
    begins = np.cumsum([100, *lengths]).tolist()
    end = begins.pop()
    events = [
        span(begin, min(length, end - begin), which, track)
        for begin, length, which, track in draw(
            st.lists(
                st.tuples(
                    st.integers(100, end - 1),
                    st.integers(1, 500),
                    st.integers(0, len(NAMES) - 1),
                    st.sampled_from([TRACK, TRACK, OTHER]),
                ),
                max_size=60,
            )
        )
    ]
    for begin in begins:
        for name in SIGNALS if draw(st.booleans()) else ():
            value = draw(st.integers(0, 500)) + (begin if name == "cpu_ns" else 0)
            events.append(
                event(Kind.COUNTER, begin, value=value, name=strings.intern(name), category=strings.category(SIGNAL))
            )
    marks = [event(Kind.STEP, at, step=number, id=SERIAL) for number, at in enumerate(begins)]
    events.sort(key=lambda block: int(block["ts"][0] + max(block["dur"][0], 0)))
    return begins, [*marks, *events], end


def recorded(events: list[Block], end: int) -> Any:
    """Facts of what is read back."""
    builder = StepFactsBuilder(late=True)
    builder.update(join_blocks(events))
    return builder.finish(end)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(runs(), st.data())
def test_facts_are_the_same_while_a_run_goes_on_and_afterwards(
    monkeypatch: pytest.MonkeyPatch, run: tuple[list[int], list[Block], int], data: st.DataObject
) -> None:
    """The windows stage gets events in whatever batches; spans that come late come late."""
    begins, events, end = run
    events = data.draw(st.permutations(events))
    windows = WindowRouter(SERIAL, 0, fallback_track=99)
    windows.add_source("late")
    windows.open(StepMark(begins[0], 0, TRACK))
    monkeypatch.setattr(window_tables, "COUNTED_LATER_BYTES", data.draw(st.sampled_from([0, 1 << 16])))
    windows.add_marks(join_blocks([each for each in events if each["kind"][0] == Kind.STEP]))
    while events:
        size = data.draw(st.integers(1, len(events)))
        windows.route(data.draw(st.sampled_from([RECORDER, "late"])), join_blocks(events[:size]), b"")
        events = events[size:]
    windows.close(WindowEnds(end, True, ""), end)
    windows.watermark(RECORDER, end)
    windows.watermark("late", end)
    assert windows.closable(end)
    ((window, _),) = windows.finish(empty_block(0))
    assert window.table is not None
    live, wanted = window.table.counted().steps, recorded(run[1], end)
    assert live.count == len(wanted) == len(begins)
    assert live.last.tobytes() == wanted.tobytes()
    again = StepTotals()
    again.add(wanted)
    assert live.of_judged() == again.of_judged()
    summary = Summary.of_table(window.table.counted())
    assert summary.steps is not None and summary.steps == statistics_of(wanted, wanted[len(begins) - live.judged :])
    assert sum(part.total_ns for part in summary.parts) == int(durations(wanted)[-live.judged :].sum())
    assert summary.steps_ns == summary.recorded_ns == end - begins[0]


@settings(max_examples=100)
@given(st.lists(st.tuples(runs(), st.integers(0, 50), st.integers(0, 50), st.booleans()), min_size=1, max_size=6))
def test_small_windows_are_counted_together_as_each_alone(
    windows: list[tuple[tuple[list[int], list[Block], int], int, int, bool]],
) -> None:
    """Windows may follow one another at once; the run may go on after the last step of one."""
    small: list[WindowTable] = []
    wanted: list[WindowTable] = []
    total, at, first, gap = WindowTable(), 0, 0, 0
    for (begins, events, end), before, after, has_steps in windows:
        at, gap = at + before, gap + before
        shifted = [each.copy() for each in events if has_steps or each["kind"][0] not in STEP_AND_SIGNALS]
        if gap < 2:
            # A reading at the begin of this window would be the end of the one before.
            shifted = [each for each in shifted if each["kind"][0] != Kind.COUNTER]
        for each in shifted:
            each["ts"] += at
            each["step"] += first
        table = WindowTable()
        for each in shifted:
            table.update(each)
        table.finish(at + begins[0] - before, at + end + after, at + end if has_steps else None)
        small.append(table)
        wanted.append(table.counted())
        at, first, gap = at + end + after - begins[0], first + len(begins), after
    total.merge(*wanted)
    found = count_together(small)
    assert found.steps.last.tobytes() == total.steps.last.tobytes()
    assert found.steps.of_judged() == total.steps.of_judged()
    assert sorted(found.spans.rows()) == sorted(total.spans.rows())
    for name in ("startup_ns", "shutdown_ns", "count", "ns"):
        assert getattr(found.steps, name) == getattr(total.steps, name)
    assert found.ns == total.ns


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(runs(), st.data())
def test_steps_are_finished_as_soon_as_all_of_them_came(
    monkeypatch: pytest.MonkeyPatch, run: tuple[list[int], list[Block], int], data: st.DataObject
) -> None:
    """However few are open, the facts are those of the whole."""
    monkeypatch.setattr(step_facts, "MIN_OPEN", 0)
    monkeypatch.setattr(step_facts, "MANY_OPEN", 0)
    _, events, end = run
    marks = [each for each in events if each["kind"][0] == Kind.STEP]
    rest = data.draw(st.permutations([each for each in events if each["kind"][0] != Kind.STEP]))
    builder, totals = StepFactsBuilder(late=True), StepTotals()
    builder.update(join_blocks(marks))
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        builder.update(join_blocks(rest[:size]))
        rest = rest[size:]
        builder.finish_until(min((int(each["ts"][0]) for each in rest), default=end))
        totals.add(builder.pop_facts())
    totals.add(builder.finish(end))
    assert totals.last.tobytes() == recorded(events, end).tobytes()


@given(runs())
def test_parts_of_each_step_add_up(run: tuple[list[int], list[Block], int]) -> None:
    """To the nanosecond, and none is negative."""
    facts = recorded(run[1], run[2])
    parts = parts_of(facts)
    assert (np.sum(list(parts.values()), axis=0) == durations(facts)).all()
    assert all((column >= 0).all() for column in parts.values())


def steps(*lengths: int, first: int = 0, data: int = 0) -> Any:
    """Facts of steps that follow one another, each with so much time of data."""
    facts: Any = np.zeros(len(lengths), FACTS_DTYPE)
    borders = np.cumsum([0, *lengths])
    facts["step"], facts["begin"], facts["end"] = np.arange(len(lengths)) + first, borders[:-1], borders[1:]
    facts["phases"][:, Phase.DATA] = data
    for name in SIGNALS:
        facts[name] = np.nan
    return facts


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=60), st.data())
def test_totals_do_not_depend_on_how_steps_come(lengths: list[int], data: st.DataObject) -> None:
    """In any pieces, and in windows that are merged."""
    facts, whole = steps(*lengths), StepTotals()
    whole.add(facts)
    cut = data.draw(st.integers(0, len(lengths)))
    first, second = StepTotals(), StepTotals()
    first.add(facts[:cut])
    second.add(facts[cut:])
    pieces = StepTotals()
    for fact in range(len(lengths)):
        pieces.add(facts[fact : fact + 1])
    for other in (first.merged(second), pieces):
        assert other.of_judged() == whole.of_judged() and other.ns == whole.ns and other.count == whole.count


def test_a_long_run_takes_no_more_memory() -> None:
    """Quantiles are off by less than 1/128 then; sums and the slowest step are exact."""
    totals = StepTotals()
    rng = np.random.default_rng(0)
    lengths = rng.integers(10_000, 2_000_000, 20_000)
    lengths[700] = 5_000_000
    facts = steps(*lengths.tolist(), data=9_000)
    totals.add(facts[:5_000])
    before = totals.nbytes()
    totals.add(facts[5_000:])
    assert totals.nbytes() < before + 4096 and len(totals.last) == LAST_STEPS
    windows = totals
    for number in range(200):
        one = StepTotals()
        one.add(facts[number : number + 1])
        windows = windows.merged(one)
        assert windows.nbytes() < 3 * before
    found, parts = totals.of_judged()
    judged = lengths[FIRST_STEPS:]
    assert found is not None and (found.slowest, found.slowest_ns) == (700, 5e6)
    assert found.mean == judged.mean() and sum(part.total_ns for part in parts) == judged.sum()
    for value, wanted in ((found.p50, np.quantile(judged, 0.5)), (found.p95, np.quantile(judged, 0.95))):
        assert abs(value - wanted) <= wanted / 100


def test_the_slowest_step_names_the_part_with_the_excess() -> None:
    """By the part with most of the excess."""
    facts = steps(*[1000] * 20, data=600)
    facts["end"][10] += 5000
    facts["phases"][10, Phase.DATA] += 4800
    found = statistics_of(facts, facts)
    assert (found.slowest, found.slowest_ns, found.slowest_why) == (10, 6000.0, "4.80us more in data")


def test_time_that_nothing_covers_runs_or_waits() -> None:
    """As the readings of the step say; without readings it is one part."""
    facts = steps(1000, 1000, 1000, data=600)
    facts["cpu_ns"], facts["run_queue_ns"] = [300, np.nan, 5000], [50, np.nan, np.nan]
    parts = parts_of(facts)
    assert parts[RUNNING].tolist() == [300, 0, 400] and parts[QUEUED].tolist() == [50, 0, 0]
    assert parts[WAITING].tolist() == [50, 0, 0] and parts[UNCOVERED].tolist() == [0, 400, 0]
    facts["phases"][:, Phase.FORWARD] = 250
    assert parts_of(facts)[RUNNING].tolist() == [50, 0, 150]


@pytest.mark.parametrize("optimizer", [True, False])
def test_step_0_is_startup_where_an_optimizer_ends_steps(optimizer: bool) -> None:
    """Only that one: a window that begins later has none."""
    totals, later = StepTotals(optimizer=optimizer), StepTotals(optimizer=optimizer)
    totals.add(steps(10_000, 100, 100))
    later.add(steps(100, 100, first=7))
    assert (totals.startup_ns, totals.count, totals.ns) == ((10_000, 2, 200) if optimizer else (0, 3, 10_200))
    assert (later.startup_ns, later.count) == (0, 2)
    metadata = {STEPS_END: OPTIMIZER} if optimizer else {}
    assert startup_step(steps(10, 10), metadata) == optimizer and not startup_step(steps(10, first=7), metadata)


def test_other_processes_stand_apart() -> None:
    """Their spans are in a table of their own, and in no step."""
    worker = tracks.new(TrackKind.THREAD, os.getpid() + 1, 5, "worker")
    own = tracks.new(TrackKind.THREAD, os.getpid(), 5, "trains")
    table = WindowTable()
    table.update(
        join_blocks([event(Kind.STEP, 0, own), span(0, 60, 10, own), span(0, 90, 4, worker), span(5, 20, 10, worker)])
    )
    table.finish(0, 150, 100)
    found = Summary.of_table(table.counted())
    assert [(row.name, row.total_ns) for row in found.rows] == [("work", 60)]
    assert {(row.name, row.total_ns) for row in found.elsewhere} == {(NAMES[4][0], 90), ("work", 20)}
    assert {part.name: part.total_ns for part in found.parts} == {"other spans": 60, "not covered": 40}
    assert (found.shutdown_ns, found.steps_ns, found.recorded_ns) == (50, 100, 150)

"""The profiler from end to end: real loop, real rings, real journal."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import stepscope as sc
from stepscope.exporters.memory import MemoryExporter
from stepscope.runtime import _core
from stepscope.runtime.errors import ProfilerStateError
from stepscope.runtime.events.record import Flag, Kind
from tests.support.messages import check_messages, refused


def names_of(exporter: MemoryExporter, window: int | None = None, kind: Kind = Kind.SPAN) -> list[str]:
    """Names of user events, without the spans of steps and of suspended tasks."""
    found = exporter.names(window, kind)
    return [name for name in found if not name.startswith("ProfilerStep#") and name != "suspended"]


def test_the_schedule_decides_which_steps_are_recorded(output_dir: Path) -> None:
    """Spans of recorded steps arrive with their step; those of other steps do not."""
    memory = MemoryExporter()
    schedule = sc.schedule(wait=1, warmup=1, active=2, repeat=2, skip_first=1)
    with sc.trace(schedule=schedule, exporters=[memory], output_dir=output_dir) as profiler:
        for step in range(12):
            assert profiler.step_num == step
            assert profiler.current_action is schedule(step)
            with sc.span(f"work {step}"):
                pass
            profiler.step()
    profiler.raise_errors()
    assert names_of(memory) == ["work 3", "work 4", "work 7", "work 8"]
    assert [[step.number for step in window.steps] for window in memory.windows] == [[3, 4], [7, 8]]
    assert all(window.complete for window in memory.windows)
    spans = memory.events(kind=Kind.SPAN)
    assert {int(span["step"]) for span in spans} == {3, 4, 7, 8}


def test_the_summary_of_a_window_that_is_open(output_dir: Path) -> None:
    """It has what has come so far, and says so; when the window is closed, each span counts once."""
    with sc.trace(output_dir=output_dir) as profiler:
        deadline = time.monotonic() + 20
        steps = 0
        while True:
            steps += 1
            with sc.span("work"):
                time.sleep(0.001)
            profiler.step()
            if steps >= 40 and (known := profiler.aggregates().steps) is not None and known.steps >= 20:
                break
            assert time.monotonic() < deadline
        early, table = profiler.aggregates(), profiler.summary()
    assert "work" in table and "steps/s" in table and "still open" in table and "no spans" not in table
    assert early.counts["open"] == 1 and 0 < early.steps_ns <= early.recorded_ns
    (row,) = [row for row in profiler.aggregates().rows if row.name == "work"]
    assert row.count == steps and "still open" not in profiler.summary()


async def test_async_with_works_the_same(output_dir: Path) -> None:
    """Inside a task, on asyncio and uvloop, spans go to the task's own track and closing does not block the loop."""
    memory = MemoryExporter()
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    ticker = asyncio.create_task(tick())
    async with sc.trace(exporters=[memory], output_dir=output_dir) as profiler:
        for _ in range(3):
            with sc.span("work"):
                await asyncio.sleep(0.001)
            profiler.step()
        before = ticks
    assert ticks > before
    ticker.cancel()
    assert names_of(memory).count("work") == 3
    assert [step.number for step in memory.windows[0].steps] == [0, 1, 2]


@pytest.mark.parametrize("after", [False, True], ids=["nothing more", "goes on"])
@pytest.mark.parametrize(
    ("work", "windows", "findings"),
    [
        (3, [([2], False)], ("its one step is", "missing: 1 of the 2")),
        (4, [([2, 3], False)], ("its 2 steps are", "missing: 1 of the 2")),
        (5, [([2, 3, 4], True)], ("missing: 1 of the 2",)),
        (9, [([2, 3, 4], True), ([7, 8], False)], ("its 2 steps are",)),
        (10, [([2, 3, 4], True), ([7, 8, 9], True)], ()),
    ],
)
def test_a_window_is_complete_if_each_of_its_steps_is_there(
    work: int, windows: list[tuple[list[int], bool]], findings: tuple[str, ...], after: bool, output_dir: Path
) -> None:
    """Also its last one. Code of the program after the last call of step() is no step, and completes nothing."""
    memory = MemoryExporter()
    schedule = sc.schedule(wait=1, warmup=1, active=3, repeat=2)
    with sc.trace(schedule=schedule, exporters=[memory], output_dir=output_dir) as profiler:
        for _ in range(work):
            with sc.span("work"):
                pass
            profiler.step()
        if after:
            with sc.span("evaluation"):
                pass
    assert [([step.number for step in window.steps], window.complete) for window in memory.windows] == windows
    notes = [note for note in profiler.diagnostics() if not note.startswith("window ")]
    own = [note for note in profiler.diagnostics() if note.startswith(("window incomplete", "windows missing"))]
    assert len(own) == len(findings) and len(notes) <= len(own), profiler.diagnostics()
    for note, finding in zip(own, findings, strict=True):
        assert finding in note


@pytest.mark.parametrize(("steps", "finding"), [(0, "never"), (2, "no step records")])
def test_an_empty_trace_says_why(steps: int, finding: str, output_dir: Path) -> None:
    """A loop that never steps, or is shorter than a cycle, is explained."""
    with sc.trace(schedule=sc.schedule(wait=5, warmup=1, active=1), output_dir=output_dir) as profiler:
        for _ in range(steps):
            profiler.step()
    assert any(finding in note for note in profiler.diagnostics())
    assert finding in str(profiler.report())


def test_start_and_stop_any_number_of_times(output_dir: Path) -> None:
    """Each start begins a window, each stop delivers it; nothing is recorded in between."""
    memory = MemoryExporter()
    profiler = sc.trace(exporters=[memory], output_dir=output_dir, start=False)
    with profiler:
        for run in range(5):
            sc.instant("outside")
            profiler.start()
            sc.instant(f"run {run}")
            profiler.stop()
            profiler.stop()
            assert len(memory.windows) == run + 1
    assert names_of(memory, kind=Kind.INSTANT) == [f"run {run}" for run in range(5)]


def test_calls_that_do_not_fit_the_state(output_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    """stop() before start() and a second start() raise; step() after stop() is counted and never raises."""
    profiler = sc.trace(output_dir=output_dir)
    with refused(ProfilerStateError, "stop()", "stepscope", "start()"):
        profiler.stop()
    profiler.start()
    with refused(ProfilerStateError, "start()", "stepscope"):
        profiler.start()
    profiler.stop()
    profiler.step()
    profiler.step()
    assert profiler.statistics().steps_ignored == 2
    assert len(check_messages(caplog.records, "step()")) == 1
    profiler.close()
    profiler.close()
    with refused(ProfilerStateError, "start()", "stepscope"):
        profiler.start()


def test_step_num_goes_on_where_a_run_ended(output_dir: Path) -> None:
    """On resume the schedule counts the steps of the whole training."""
    memory = MemoryExporter()
    profiler = sc.trace(
        schedule=sc.schedule(wait=0, warmup=0, active=2, repeat=1, skip_first=101),
        exporters=[memory],
        output_dir=output_dir,
    )
    profiler.step_num = 100
    with profiler:
        for _ in range(4):
            profiler.step()
    assert [step.number for step in memory.windows[0].steps] == [101, 102]
    for wrong in (-1, True, 1.5):
        with refused(ValueError, "step_num"):
            sc.trace(output_dir=output_dir).step_num = wrong  # type: ignore[assignment]


def test_nested_pauses_count_and_the_gap_is_an_event(output_dir: Path) -> None:
    """Nothing is recorded until the last pause is over; a span across it is cut in two."""
    memory = MemoryExporter()
    with sc.trace(exporters=[memory], output_dir=output_dir) as profiler:
        with sc.span("across"):
            profiler.pause()
            profiler.pause()
            sc.instant("in pause")
            profiler.resume()
            sc.instant("still in pause")
            profiler.resume()
            profiler.resume()
            sc.instant("after")
        profiler.step()
    assert names_of(memory, kind=Kind.INSTANT) == ["after"]
    parts = memory.events(kind=Kind.SPAN)
    parts = parts[parts["flags"] & int(Flag.CLIPPED) > 0]
    assert len(parts) == 2
    (gap,) = memory.events(kind=Kind.GAP)
    assert memory.names(kind=Kind.GAP) == ["paused"]
    assert int(parts["dur"].sum() + gap["dur"]) == int(parts["ts"][1] + parts["dur"][1] - parts["ts"][0])


@pytest.mark.parametrize("kind", ["plain", "coroutine function"])
def test_on_trace_ready_gets_each_window_off_the_training_thread(kind: str, output_dir: Path) -> None:
    """It may summarise and export the window, in any format, any number of times."""
    seen: list[tuple[int, int]] = []
    threads: set[str] = set()

    def look(window: sc.Window) -> None:
        assert window.ledger.outputs["journal"].in_flight == 0
        threads.add(threading.current_thread().name)
        (row,) = [row for row in window.summary().rows if row.name == "work"]
        seen.append((window.index, row.count))
        for number in range(2):
            path = window.export(output_dir / f"{window.index}-{number}.json")
            spans = [event for event in json.loads(path.read_text()) if event.get("name") == "work"]
            assert len(spans) == 4

    async def look_async(window: sc.Window) -> None:
        await asyncio.sleep(0)
        look(window)

    callback: Callable[..., object] = look if kind == "plain" else look_async
    with sc.trace(
        schedule=sc.schedule(wait=0, warmup=0, active=2), on_trace_ready=callback, output_dir=output_dir
    ) as profiler:
        for _ in range(4):
            for _ in range(2):
                with sc.span("work"):
                    pass
            profiler.step()
    profiler.raise_errors()
    assert seen == [(0, 4), (1, 4)]
    assert threading.main_thread().name not in threads


def test_an_exception_of_a_callback_is_stored(output_dir: Path) -> None:
    """A second window still reaches it."""
    calls: list[int] = []

    def callback(window: sc.Window) -> None:
        calls.append(window.index)
        raise ZeroDivisionError("mine")

    with sc.trace(
        schedule=sc.schedule(wait=0, warmup=0, active=1), on_trace_ready=callback, output_dir=output_dir
    ) as profiler:
        for _ in range(2):
            sc.instant("tick")
            profiler.step()
    assert calls == [0, 1]
    with pytest.raises(ExceptionGroup):
        profiler.raise_errors()


def test_a_schedule_that_fails_records_nothing_more(output_dir: Path) -> None:
    """An unknown action or an exception of a user's schedule never reaches the loop."""
    memory = MemoryExporter()

    def schedule(step: int) -> object:
        return sc.ProfilerAction.RECORD if step < 2 else 7

    with sc.trace(schedule=schedule, exporters=[memory], output_dir=output_dir) as profiler:
        for step in range(4):
            sc.instant(f"at {step}")
            profiler.step()
    assert names_of(memory, kind=Kind.INSTANT) == ["at 0", "at 1"]
    assert any("unknown action" in note for note in profiler.diagnostics())
    with pytest.raises(ExceptionGroup):
        profiler.raise_errors()


def test_a_window_without_an_end_in_sight(output_dir: Path) -> None:
    """`active=sys.maxsize` records everything after the wait: the end, which no counter can hold, never comes."""
    memory = MemoryExporter()
    schedule = sc.schedule(skip_first=1, wait=1, warmup=0, active=sys.maxsize)
    with sc.trace(schedule=schedule, exporters=[memory], output_dir=output_dir) as profiler:
        for step in range(4):
            sc.instant(f"at {step}")
            profiler.step()
    assert names_of(memory, kind=Kind.INSTANT) == ["at 2", "at 3"]


@pytest.mark.parametrize(
    ("wrong", "facts"),
    [
        ({"options": {"linger": 1}}, ["options", "stepscope.Options"]),
        ({"schedule": 3}, ["schedule", "3"]),
        ({"backends": [object()]}, ["name, thread_bound, open", "stepscope.backends.Backend"]),
        ({"exporters": [MemoryExporter]}, ["MemoryExporter(...)"]),
        ({"rank": -1}, ["rank", "-1"]),
        ({"rank": 2, "world_size": 2}, ["rank", "2"]),
        ({"name": ""}, ["name", "''"]),
        ({"on_trace_ready": 3}, ["on_trace_ready", "3"]),
        ({"metadata": [1]}, ["metadata", "[1]"]),
        ({"output_dir": 3}, ["output_dir", "3"]),
        ({"exporters": MemoryExporter()}, ["exporters", "MemoryExporter"]),
        ({"options": {}}, ["options", "stepscope.Options"]),
        ({"exporters": [MemoryExporter(), MemoryExporter()]}, ["exporters", "memory"]),
    ],
)
def test_wrong_arguments_are_named_with_their_value(wrong: dict[str, object], facts: list[str]) -> None:
    """Misuse is reported at construction, by name, value and remedy."""
    with refused((TypeError, ValueError), *facts):
        sc.trace(**wrong)  # type: ignore[arg-type]


def test_lives_of_profilers_leave_nothing_in_the_table_of_tracks(tmp_path: Path) -> None:
    """The table only grows, and every journal writes it: a closed profiler's track of steps is used again."""
    with sc.trace(output_dir=tmp_path / "first") as first, sc.trace(output_dir=tmp_path / "second"):
        first.step()
    before = len(_core.tracks(1))
    for number in range(10):
        with sc.trace(output_dir=tmp_path / str(number)) as profiler:
            profiler.step()
    assert len(_core.tracks(1)) == before


def test_recorded_events_are_flushed(tmp_path: Path) -> None:
    """All of it, also what was recorded while the rings were being emptied, as they are here for somebody else's flushes."""
    memory = sc.exporters.MemoryExporter()
    with sc.trace(output_dir=tmp_path, exporters=[memory], options=sc.Options(close_timeout=60)) as profiler:
        over = threading.Event()

        def flush() -> None:
            while not over.is_set():
                profiler.flush()

        others = threading.Thread(target=flush)
        others.start()
        try:
            for number in range(1, 201):
                sc.instant("here")
                assert profiler.flush()
                assert memory.names(kind=Kind.INSTANT).count("here") == number
        finally:
            over.set()
            others.join()


def test_windows_that_follow_each_other_leave_nothing_out(output_dir: Path) -> None:
    """Events between two windows are in the second: a schedule, a finalizer or another thread may record some."""

    def two_steps_a_window(step: int) -> sc.ProfilerAction:
        with sc.span("schedule"):
            pass
        return sc.ProfilerAction.RECORD_AND_SAVE if step % 2 else sc.ProfilerAction.RECORD

    memory = MemoryExporter()
    with sc.trace(output_dir=output_dir, exporters=[memory], schedule=two_steps_a_window) as profiler:
        for _ in range(10):
            profiler.step()
    borders = [(window.start_ns, window.end_ns) for window in memory.windows]
    assert all(before[1] == after[0] for before, after in itertools.pairwise(borders[:-1]))
    assert memory.names().count("schedule") == 10


def test_events_of_many_threads_arrive_in_their_steps(output_dir: Path) -> None:
    """Threads that record while the main thread steps lose nothing, and each event's step is that of its time."""
    memory = MemoryExporter()
    stop = threading.Event()
    recorded: list[int] = []

    def work() -> None:
        count = 0
        while not stop.is_set():
            sc.instant("tick")
            count += 1
        recorded.append(count)

    threads = [threading.Thread(target=work) for _ in range(4)]
    with sc.trace(exporters=[memory], output_dir=output_dir) as profiler:
        for thread in threads:
            thread.start()
        for _ in range(200):
            sc.instant("main")
            profiler.step()
        stop.set()
        for thread in threads:
            thread.join()
    stats = profiler.statistics()
    assert stats.pipeline is not None
    dropped = sum(stats.pipeline.windows.dropped.get("recorder", {}).values())
    assert names_of(memory, kind=Kind.INSTANT).count("tick") + dropped == sum(recorded)
    starts = {step.number: step for step in memory.windows[0].steps}
    for event in memory.events(kind=Kind.INSTANT):
        step = starts.get(int(event["step"]))
        if step is None:  # after the last call of step()
            assert int(event["step"]) == 200 and int(event["ts"]) >= starts[199].end_ns
        else:
            assert step.start_ns <= int(event["ts"]) <= step.end_ns

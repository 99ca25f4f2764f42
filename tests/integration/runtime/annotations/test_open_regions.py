"""Regions that are open when a window begins: they are in it, cut at its begin, whoever has them open."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import stepscope as sc
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Flag, Kind
from tests.unit.runtime.core.test_stack import open_rows

WAIT = sc.schedule(wait=1, warmup=1, active=2)


@contextmanager
def traced(
    directory: Path, schedule: Any = WAIT, **more: Any
) -> Generator[tuple[sc.Profiler, sc.exporters.MemoryExporter]]:
    """A profiler and all that it exports."""
    memory = sc.exporters.MemoryExporter()
    with sc.trace(schedule=schedule, exporters=[memory], output_dir=directory, **more) as profiler:
        yield profiler, memory
    assert profiler.audit() == ()
    profiler.raise_errors()


def row(memory: sc.exporters.MemoryExporter, window: int, name: str) -> Any:
    """The only span of a name in a window."""
    spans = memory.events(window, Kind.SPAN)
    (found,) = [event for event in spans if strings.name_of(event) == name]
    return found


def work(profiler: sc.Profiler, steps: int = 4) -> None:
    """Steps with a span each."""
    for _ in range(steps):
        with sc.span("batch"):
            time.sleep(0.001)
        profiler.step()


@pytest.mark.parametrize("entered_at", [0, 1], ids=["wait", "warmup"])
def test_a_region_around_the_window(entered_at: int, output_dir: Path) -> None:
    """It is there with its arguments' name, from border to border, and its own time is not the whole."""
    with traced(output_dir) as (profiler, memory):
        work(profiler, entered_at)
        with sc.span("epoch"), sc.span("inner"):
            work(profiler, 5 - entered_at)
    (window,) = memory.windows
    spans = memory.events(0, Kind.SPAN)
    batches = [event for event in spans if strings.name_of(event) == "batch"]
    for name in ("epoch", "inner"):
        found = row(memory, 0, name)
        assert (found["ts"], found["ts"] + found["dur"]) == (window.start_ns, window.end_ns)
        assert Flag.CLIPPED in Flag(int(found["flags"]))
    assert row(memory, 0, "inner")["parent"] == row(memory, 0, "epoch")["id"]
    assert {int(event["parent"]) for event in batches} == {int(row(memory, 0, "inner")["id"])}
    for name in ("epoch", "inner"):
        assert row(memory, 0, name)["self_dur"] < row(memory, 0, name)["dur"]
    assert not any("empty" in note for note in window.diagnostics)
    assert open_rows() == []


def test_a_region_over_several_windows(output_dir: Path) -> None:
    """It is in each, with that window's self time, and not between them; one that ends in a window has its end there."""
    with traced(output_dir) as (profiler, memory):
        with sc.span("epoch"):
            work(profiler, 6)
            with sc.span("ends in the second window"):
                work(profiler, 1)
            work(profiler, 3)
    assert [[step.number for step in window.steps] for window in memory.windows] == [[2, 3], [6, 7]]
    for window in memory.windows:
        found = row(memory, window.index, "epoch")
        assert found["dur"] == window.end_ns - window.start_ns
        assert found["self_dur"] < found["dur"]
    second = memory.windows[1]
    assert memory.names(0).count("ends in the second window") == 0
    ended = row(memory, 1, "ends in the second window")
    assert second.start_ns < ended["ts"] < ended["ts"] + ended["dur"] < second.end_ns


def test_regions_that_ended_before_are_in_no_window(output_dir: Path) -> None:
    """Nor is it recorded at all; entered before and ended between windows it is in none either."""
    with traced(output_dir) as (profiler, memory):
        for _ in range(100):
            with sc.span("over"), sc.span("inner"):
                pass
        recorder = profiler.statistics().recorder
        assert recorder is not None and recorder.produced <= 1
        work(profiler, 4)
        with sc.span("between"):
            pass
        across = sc.span("across the end of the first")
        work(profiler, 1)
        across.__enter__()
        across.__exit__(None, None, None)
        work(profiler, 4)
    assert not {"over", "inner", "between", "across the end of the first"} & set(memory.names())


def test_tasks_and_threads(output_dir: Path) -> None:
    """Of tasks that wait and threads that are blocked: each on its row; a task's waiting is no time of its own."""
    begin, end = threading.Event(), threading.Event()

    def thread() -> None:
        with sc.span("in a thread"):
            begin.set()
            end.wait(30)

    async def task(stop: asyncio.Event) -> None:
        with sc.span("in a task"):
            await stop.wait()

    async def main(profiler: sc.Profiler) -> None:
        stop = asyncio.Event()
        tasks = [asyncio.create_task(task(stop), name=f"task {number}") for number in range(2)]
        await asyncio.sleep(0)
        for _ in range(4):
            with sc.span("batch"):
                await asyncio.sleep(0.001)
            profiler.step()
        stop.set()
        await asyncio.gather(*tasks)

    with traced(output_dir) as (profiler, memory):
        other = threading.Thread(target=thread)
        other.start()
        begin.wait(30)
        asyncio.run(main(profiler))
        end.set()
        other.join()
    spans = [event for event in memory.events(0, Kind.SPAN) if strings.name_of(event).startswith("in a t")]
    assert sorted(strings.name_of(event) for event in spans) == ["in a task", "in a task", "in a thread"]
    assert len({int(event["track"]) for event in spans}) == 3
    for event in spans:
        assert event["dur"] == memory.windows[0].end_ns - memory.windows[0].start_ns
        assert strings.name_of(event) == "in a thread" or event["self_dur"] < event["dur"]
    assert open_rows() == []


def test_a_region_that_begins_in_a_pause(output_dir: Path) -> None:
    """It is there from the end of the pause on, and has no part before; one that also ends in the pause is not there."""
    with traced(output_dir) as (profiler, memory):
        work(profiler, 2)
        profiler.pause()
        late = sc.span("late")
        late.__enter__()
        with sc.span("within"):
            time.sleep(0.001)
        profiler.resume()
        late.__exit__(None, None, None)
        work(profiler, 3)
    found = [(strings.name_of(event), int(event["ts"])) for event in memory.events(0, Kind.SPAN)]
    (pause,) = memory.events(0, Kind.GAP)
    assert [ts for name, ts in found if name == "late"] == [int(pause["ts"]) + int(pause["dur"])]
    assert "within" not in dict(found)


def test_two_profilers(tmp_path: Path) -> None:
    """Each window has the region, whether the other one records or not; with nothing else recorded it is not empty."""
    with (
        traced(tmp_path / "one") as (one, first),
        traced(tmp_path / "two", sc.schedule(wait=3, warmup=0, active=1)) as (two, second),
    ):
        with sc.span("epoch"):
            for _ in range(4):
                one.step()
                two.step()
    assert row(first, 0, "epoch")["dur"] > 0
    assert row(second, 0, "epoch")["dur"] > 0
    assert not any("empty" in note for memory in (first, second) for note in memory.windows[0].diagnostics)


def test_one_object_and_generators(output_dir: Path) -> None:
    """An object that is entered several times while nothing records, and one that stays open across a yield."""
    again = sc.span("again")

    def stream() -> Generator[int]:
        with sc.span("stream"):
            yield from range(5)

    with traced(output_dir) as (profiler, memory):
        with again, again:
            for _ in stream():
                profiler.step()
    assert memory.names(0, Kind.SPAN).count("again") == 2
    assert row(memory, 0, "stream")
    assert open_rows() == []


def test_nothing_is_noted_without_a_profiler(output_dir: Path) -> None:
    """Before the start and after the end a span costs what it did: it goes onto no stack."""
    with sc.span("before"):
        with traced(output_dir) as (profiler, memory), sc.span("inside"):
            assert len(open_rows()) == 1
            work(profiler)
        with sc.span("after"):
            assert open_rows() == []
    assert "before" not in memory.names()

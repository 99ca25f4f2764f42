"""Calls of a profiler from where nobody should have to expect them: callbacks, exporters, backends, signal handlers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import stepscope as sc
from stepscope.backends.simulated.scripted import ScriptedBackend
from stepscope.runtime.errors import ProfilerStateError
from stepscope.runtime.events.record import EventBatch, Kind
from stepscope.runtime.schedule.action import ProfilerAction

# A test that hangs is ended by a thread: some take the signal by which it would be ended otherwise.
pytestmark = pytest.mark.timeout(method="thread")

EVERY_STEP = sc.schedule(wait=0, warmup=0, active=1)
CALLS = ("stop", "close", "flush", "pause", "resume", "step", "start")


def call(profiler: sc.Profiler, name: str) -> None:
    """Makes a call; that it does not fit the state is no failure here."""
    with suppress(ProfilerStateError):
        getattr(profiler, name)()


def closed_within(profiler: sc.Profiler, seconds: float) -> None:
    """Closes, and fails if that took too long or left the loop behind."""
    began = time.monotonic()
    profiler.close()
    assert time.monotonic() - began < seconds
    deadline = time.monotonic() + seconds
    while any(thread.name.startswith("stepscope") for thread in threading.enumerate()):
        assert time.monotonic() < deadline, [thread.name for thread in threading.enumerate()]
        time.sleep(0.01)


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
@pytest.mark.parametrize("name", CALLS)
def test_calls_in_on_trace_ready(name: str, kind: str, output_dir: Path) -> None:
    """A callback that stops, closes or restarts its own profiler neither waits for itself nor breaks it."""
    called = threading.Event()
    took: list[float] = []

    def callback(_: sc.Window) -> None:
        began = time.monotonic()
        call(profiler, name)
        took.append(time.monotonic() - began)
        called.set()

    async def coroutine(window: sc.Window) -> None:
        callback(window)

    ready: Callable[[sc.Window], object] = callback if kind == "plain" else coroutine
    profiler = sc.trace(schedule=EVERY_STEP, on_trace_ready=ready, output_dir=output_dir)
    profiler.start()
    sc.instant("tick")
    profiler.step()
    assert called.wait(30)
    for _ in range(3):
        profiler.step()
    closed_within(profiler, 4)
    profiler.raise_errors()
    assert max(took) < 2


@pytest.mark.parametrize("name", CALLS)
def test_calls_in_an_exporter(name: str, output_dir: Path) -> None:
    """On the loop, in the middle of an export."""

    class Calling(sc.exporters.MemoryExporter):
        async def export(self, batch: EventBatch) -> None:
            await super().export(batch)
            if "tick" in self.names():
                call(profiler, name)

    exporter = Calling()
    profiler = sc.trace(exporters=[exporter], output_dir=output_dir)
    profiler.start()
    sc.instant("tick")
    profiler.step()
    deadline = time.monotonic() + 30
    while "tick" not in exporter.names() and time.monotonic() < deadline:
        time.sleep(0.01)
    profiler.step()
    closed_within(profiler, 4)
    profiler.raise_errors()
    assert exporter.names().count("tick") == 1


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_calls_in_a_backend(name: str, bound: bool, output_dir: Path) -> None:
    """While the action changes; what is called then happens when the change is over."""

    class Calling(ScriptedBackend):
        def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
            super().transition(before, after, at)
            call(profiler, name)

    profiler = sc.trace(
        schedule=sc.schedule(wait=1, warmup=1, active=1, repeat=2),
        backends=[Calling(thread_bound=bound)],
        output_dir=output_dir,
    )
    profiler.start()
    for _ in range(8):
        profiler.step()
    closed_within(profiler, 8)


@pytest.mark.parametrize("name", CALLS)
def test_calls_in_a_schedule(name: str, output_dir: Path) -> None:
    """A schedule that calls its own profiler is answered first."""

    def schedule(step: int) -> ProfilerAction:
        if 1 < step < 4:
            call(profiler, name)
        return ProfilerAction.RECORD if step else ProfilerAction.NONE

    profiler = sc.trace(schedule=schedule, output_dir=output_dir)
    profiler.start()
    for _ in range(6):
        profiler.step()
    closed_within(profiler, 8)


def test_step_does_not_wait_for_the_stop_of_another_thread(output_dir: Path) -> None:
    """stop() waits for a hanging exporter; the thread that steps meanwhile is not held."""
    exporter = sc.exporters.MemoryExporter(hang_in="export")
    profiler = sc.trace(exporters=[exporter], output_dir=output_dir, options=sc.Options(close_timeout=1.0))
    profiler.start()
    sc.instant("tick")
    thread = threading.Thread(target=profiler.stop)
    thread.start()
    longest = 0.0
    while thread.is_alive():
        began = time.monotonic()
        profiler.step()
        longest = max(longest, time.monotonic() - began)
    thread.join()
    profiler.close()
    assert longest < 0.5


async def test_a_loop_goes_on_while_a_profiler_closes_in_a_task(output_dir: Path) -> None:
    """Several tasks leave their profilers at once."""

    async def record(number: int) -> list[str]:
        memory = sc.exporters.MemoryExporter()
        async with sc.trace(exporters=[memory], output_dir=output_dir / str(number)) as profiler:
            sc.instant(f"task {number}")
            await asyncio.sleep(0)
            profiler.step()
        profiler.raise_errors()
        return [name for name in memory.names(kind=Kind.INSTANT) if name == f"task {number}"]

    assert await asyncio.gather(*(record(number) for number in range(8))) == [[f"task {n}"] for n in range(8)]

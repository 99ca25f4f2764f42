"""Calls of a profiler from where nobody should have to expect them: callbacks, exporters, backends, signal handlers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import stepscope as sc
from stepscope.backends.simulated.scripted import ScriptedBackend
from stepscope.runtime.errors import ProfilerStateError
from stepscope.runtime.events.record import EventBatch, Kind
from stepscope.runtime.schedule.action import ProfilerAction

# A test that hangs is ended by a thread: some take the signal by which it would be ended otherwise.
pytestmark = pytest.mark.timeout(method="thread")

EVERY_STEP = sc.schedule(wait=0, warmup=0, active=1)
TWO_WINDOWS = sc.schedule(wait=1, warmup=1, active=1, repeat=2)
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


class Exporting(sc.exporters.MemoryExporter):
    """Makes a call on the loop, in the middle of an export."""

    def __init__(self, inside: Callable[[], None]) -> None:
        super().__init__()
        self._inside = inside

    async def export(self, batch: EventBatch) -> None:
        await super().export(batch)
        if "tick" in self.names():
            self._inside()


class Changing(ScriptedBackend):
    """Makes a call while the action changes; what is called then happens when the change is over."""

    def __init__(self, inside: Callable[[], None], *, bound: bool) -> None:
        super().__init__(thread_bound=bound)
        self._inside = inside

    def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        super().transition(before, after, at)
        self._inside()


def callback(inside: Callable[[], None]) -> Callable[[sc.Window], None]:
    """A callback that makes a call."""

    def ready(_: sc.Window) -> None:
        inside()

    return ready


def coroutine(inside: Callable[[], None]) -> Callable[[sc.Window], Coroutine[Any, Any, None]]:
    """An async callback that makes a call."""

    async def ready(_: sc.Window) -> None:
        inside()

    return ready


def planned(inside: Callable[[], None]) -> Callable[[int], ProfilerAction]:
    """A schedule that makes a call; it is answered first."""

    def schedule(step: int) -> ProfilerAction:
        if 1 < step < 4:
            inside()
        return ProfilerAction.RECORD if step else ProfilerAction.NONE

    return schedule


PLACES: dict[str, Callable[[Callable[[], None]], dict[str, Any]]] = {
    "callback": lambda inside: {"schedule": EVERY_STEP, "on_trace_ready": callback(inside)},
    "coroutine": lambda inside: {"schedule": EVERY_STEP, "on_trace_ready": coroutine(inside)},
    "exporter": lambda inside: {"exporters": [Exporting(inside)]},
    "backend": lambda inside: {"schedule": TWO_WINDOWS, "backends": [Changing(inside, bound=False)]},
    "bound backend": lambda inside: {"schedule": TWO_WINDOWS, "backends": [Changing(inside, bound=True)]},
    "schedule": lambda inside: {"schedule": planned(inside)},
}


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("name", CALLS)
def test_calls_in_parts(name: str, where: str, output_dir: Path) -> None:
    """One that stops, closes or restarts its own profiler neither waits for itself nor breaks it."""
    called, took = threading.Event(), list[float]()

    def inside() -> None:
        began = time.monotonic()
        call(profiler, name)
        took.append(time.monotonic() - began)
        called.set()

    settings = PLACES[where](inside)
    profiler = sc.trace(output_dir=output_dir, **settings)
    profiler.start()
    sc.instant("tick")
    profiler.step()
    if where in ("callback", "coroutine", "exporter"):
        assert called.wait(30)
    for _ in range(7):
        profiler.step()
    closed_within(profiler, 8)
    profiler.raise_errors()
    assert called.is_set() and (where not in ("callback", "coroutine") or max(took) < 2)
    for exporter in settings.get("exporters", ()):
        assert exporter.names().count("tick") == 1


def test_step_does_not_wait_for_the_stop_of_another_thread(output_dir: Path) -> None:
    """stop() waits for a hanging exporter; the thread that steps meanwhile is not blocked."""
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

"""The victim at the moment in which a signal comes from another process: calls of its main thread, many short ones or a long one.

    python -m tests.stress.torture.moments DIRECTORY SEED MOMENT

MOMENT is the name of a function below. It touches DIRECTORY/ready when the signal may come, and waits for it then.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import stepscope
from stepscope.exporters.base import EventBatch, Run, Window
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.sources.sink import BackendReport, Sink
from tests.stress.torture.diary import Diary, Lane
from tests.stress.torture.victim import MAIN, begin, profiler

EVER = 600.0
EACH = stepscope.schedule(wait=0, warmup=0, active=1)
SLOW = 0.1
"""Seconds that the end of a window takes in `SlowBackend`, and closing in `SlowExporter`."""


class SlowBackend:
    """Bound to the main thread, and slow to stop there."""

    name = "slow"
    thread_bound = True

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def open(self, sink: Sink) -> None:
        self._sink = sink

    def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        time.sleep(self._seconds)
        self._sink.watermark(at)

    async def aclose(self) -> None:
        self._sink.watermark((1 << 63) - 1)

    def report(self) -> BackendReport:
        return BackendReport()


class SlowExporter:
    """Takes a while to close."""

    name = "slow"

    async def open(self, run: Run) -> None:
        """Nothing is needed."""

    async def export(self, batch: EventBatch) -> None:
        """Stores nothing."""

    async def close_window(self, window: Window) -> None:
        """Nothing is written."""

    async def aclose(self) -> None:
        await asyncio.sleep(SLOW)


class Program:
    """The traced program of all moments, when its threads record."""

    def __init__(self, place: Path, seed: int, moment: str, **settings: Any) -> None:
        self.diary = Diary(place / "diary")
        self.lane: Lane = self.diary.writer(MAIN)
        self.traced = profiler(place, seed, moment, **settings)
        self._ready = place / "ready"

    def ready(self) -> None:
        """The signal may come."""
        self._ready.touch()

    def start(self) -> None:
        """Starts the profiler and the other threads."""
        self.traced.start()
        begin(self.diary)

    def repeat(self, call: Callable[[], object]) -> None:
        """Steps, each with that call, until the signal comes."""
        self.ready()
        while not self.lane.full:
            with self.lane.span(), self.lane.span(text="innermost"):
                pass
            self.diary.step(self.traced.step)
            call()
        time.sleep(EVER)

    def once(self, call: Callable[[], object]) -> None:
        """A call that lasts, in a span."""
        with self.lane.span():
            self.ready()
            call()


def asleep(place: Path, seed: int) -> None:
    """It sleeps."""
    program = Program(place, seed, "asleep")
    program.start()
    program.once(lambda: time.sleep(EVER))


def computing(place: Path, seed: int) -> None:
    """It computes in Python."""
    program = Program(place, seed, "computing")
    program.start()
    program.once(lambda: [None for _ in iter(int, 1)])


def in_native_code(place: Path, seed: int) -> None:
    """It is in a native function that does not come back, as one that waits for another rank."""
    program = Program(place, seed, "in native code")
    program.start()
    program.once(lambda: hashlib.pbkdf2_hmac("sha256", b"", b"", 1 << 30))


def stepping(place: Path, seed: int) -> None:
    """Each step ends a window, and does little else. Other threads would record between the windows."""
    program = Program(place, seed, "stepping", schedule=EACH)
    program.traced.start()
    program.repeat(lambda: time.sleep(0.001))


def changing(place: Path, seed: int) -> None:
    """Each step ends a window, and it waits for a backend then."""
    program = Program(place, seed, "changing", schedule=EACH, backends=[SlowBackend(0.005)])
    program.traced.start()
    program.repeat(lambda: None)


def flushing(place: Path, seed: int) -> None:
    """It calls `flush()` after each step."""
    program = Program(place, seed, "flushing", schedule=None)
    program.start()
    program.repeat(program.traced.flush)


def looking(place: Path, seed: int) -> None:
    """It calls `statistics()` after each step."""
    program = Program(place, seed, "looking", schedule=None)
    program.start()
    program.repeat(program.traced.statistics)


def leaving(place: Path, seed: int) -> None:
    """It leaves `with`, and sleeps then."""
    program = Program(place, seed, "leaving", backends=[SlowBackend(SLOW)], exporters=[SlowExporter()])
    with program.traced:
        begin(program.diary)
        with program.lane.span():
            time.sleep(0.05)
        program.diary.step(program.traced.step)
        program.ready()
    time.sleep(EVER)


def leaving_async(place: Path, seed: int) -> None:
    """It leaves `async with`, and its task sleeps then."""
    program = Program(place, seed, "leaving async", backends=[SlowBackend(SLOW)], exporters=[SlowExporter()])

    async def train() -> None:
        async with program.traced:
            begin(program.diary)
            with program.lane.span():
                await asyncio.sleep(0.05)
            program.diary.step(program.traced.step)
            program.ready()
        await asyncio.sleep(EVER)

    asyncio.run(train())


if __name__ == "__main__":
    globals()[sys.argv[3]](Path(sys.argv[1]), int(sys.argv[2]))

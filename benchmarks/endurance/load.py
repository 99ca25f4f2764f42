"""The program that records many spans at a steady rate.

usage: python -m benchmarks.endurance.load SPANS RATE DIRECTORY KEPT

With KEPT steps, it keeps these at all times and saves them now and then, instead of writing everything. It prints how many it
has recorded, a line a second, and at the end what became of them, as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

import stepscope as sc

THREADS = 3
"""Threads that record, in addition to one that runs an event loop with tasks."""
TASKS = 8
"""At a time; each records `CHUNK` spans and ends, and another takes its place."""
NAMES = 500
CHUNK = 500
"""Spans between two looks at the clock."""
STEP = 0.02
"""Seconds of a step; fifty make a window."""
SAVED_EVERY = 200
"""Steps between two windows that are saved, with the flight recorder."""
PART = 64 << 20
"""Bytes of one part of the Chrome trace: complete ones are removed, mostly before the disk has to have them."""


class End(msgspec.Struct, kw_only=True):
    """The result of the run."""

    spans: int
    recording_seconds: float
    closing_ns: int
    windows: int
    overflow: int
    """Events that full rings dropped."""
    produced: int
    """All events, step marks included."""
    outputs: dict[str, tuple[int, int, dict[str, int], int]]
    """Offered, exported, dropped by reason, in flight."""
    errors: dict[str, str]
    threads: list[str]
    """Our threads that run after closing."""
    descriptors: list[str] = []
    """Descriptors and threads that are open after closing and were not before the start."""
    problems: list[str] = []
    """Accounts that do not agree."""


class Pace:
    """Says how many spans may have been recorded by now."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._start = time.perf_counter()

    def wait(self, spans: int) -> float:
        """Seconds until so many are due; 0 if they are late."""
        return max(self._start + spans / self._rate - time.perf_counter(), 0.0)


def record(names: list[str], first: int) -> None:
    """A chunk: nested, some with a number, some with text."""
    for at in range(first, first + CHUNK, 4):
        with sc.span(names[at % NAMES]):
            with sc.span(names[(at + 1) % NAMES], number=at & 0xFFFF):
                pass
            with sc.span(names[(at + 2) % NAMES]):
                pass
        if at % 16:
            with sc.span(names[(at + 3) % NAMES]):
                pass
        else:
            with sc.span(names[(at + 3) % NAMES], text="some text", loss=0.5):
                pass


class Producers:
    """The threads that record, and how far they are."""

    def __init__(self, spans: int, rate: float) -> None:
        self._names = [f"layer {number}" for number in range(NAMES)]
        self._each = spans // (THREADS + 1) // CHUNK * CHUNK
        self._rate = rate / (THREADS + 1)
        self._done = [0] * (THREADS + 1)
        targets = [*[self._thread] * THREADS, self._loop]
        self._threads = [threading.Thread(target=target, args=(i,)) for i, target in enumerate(targets)]

    @property
    def spans(self) -> int:
        """Recorded so far."""
        return sum(self._done)

    def start(self) -> None:
        """Starts the threads."""
        for thread in self._threads:
            thread.start()

    @property
    def working(self) -> bool:
        """True if any of them is at work."""
        return any(thread.is_alive() for thread in self._threads)

    def _chunks(self, me: int) -> Iterator[int]:
        for first in range(0, self._each, CHUNK):
            yield first
            self._done[me] += CHUNK

    def _thread(self, me: int) -> None:
        pace = Pace(self._rate)
        for first in self._chunks(me):
            record(self._names, first)
            time.sleep(pace.wait(first + CHUNK))

    def _loop(self, me: int) -> None:
        asyncio.run(self._tasks(me))

    async def _tasks(self, me: int) -> None:
        pace = Pace(self._rate)
        running: set[asyncio.Task[None]] = set()

        async def one(first: int) -> None:
            await asyncio.sleep(0)
            record(self._names, first)

        for number, first in enumerate(self._chunks(me)):
            running.add(asyncio.create_task(one(first), name=f"task {number % TASKS}"))
            if len(running) == TASKS:
                await asyncio.wait(running)
                running.clear()
            await asyncio.sleep(pace.wait(first + CHUNK))
        if running:
            await asyncio.wait(running)


def journal_profiler(directory: Path) -> sc.Profiler:
    """One that writes everything, in windows of fifty steps."""
    return sc.trace(
        schedule=sc.schedule(wait=0, warmup=0, active=50),
        exporters=[sc.ChromeTraceExporter(directory / "trace.json", max_bytes=PART)],
        output_dir=directory / "run",
    )


def flight_profiler(directory: Path, steps: int) -> sc.Profiler:
    """One that keeps the last steps, and of the windows that it saves two."""
    return sc.trace(
        keep_last=sc.FlightRecorder(steps=steps, triggers=(), keep_newest=2, keep_slowest=0),
        exporters=[sc.ChromeTraceExporter(directory / "trace{window}.json")],
        output_dir=directory / "run",
    )


def main(spans: int, rate: float, directory: Path, steps: int = 0) -> End:
    """Records, closes, and prints."""
    opened = _opened()
    profiler = flight_profiler(directory, steps) if steps else journal_profiler(directory)
    profiler.start()
    producers = Producers(spans, rate)
    number = 0
    began = reported = time.perf_counter()
    producers.start()
    while producers.working:
        time.sleep(STEP)
        profiler.step()
        if steps and (number := number + 1) % SAVED_EVERY == 0:
            profiler.save("now and then")
        if time.perf_counter() - reported >= 1:
            reported = time.perf_counter()
            print(producers.spans, flush=True)
    took = time.perf_counter() - began
    before = time.perf_counter_ns()
    profiler.close()
    closing = time.perf_counter_ns() - before
    statistics = profiler.statistics()
    assert statistics.recorder is not None and statistics.pipeline is not None
    outputs = statistics.pipeline.exporters
    deadline = time.monotonic() + 10
    while _ours() and time.monotonic() < deadline:
        time.sleep(0.05)  # threads that are to end do, when it is their turn
    return End(
        spans=producers.spans,
        recording_seconds=took,
        closing_ns=closing,
        windows=statistics.windows,
        overflow=statistics.recorder.dropped,
        produced=statistics.recorder.produced,
        outputs={
            os.path.basename(o.name): (o.ledger.offered, o.ledger.exported, o.ledger.dropped, o.ledger.in_flight)
            for o in outputs
        },
        errors={output.name: output.first_error for output in outputs if output.errors},
        threads=_ours(),
        descriptors=sorted((_opened() - opened).elements()),
        problems=list(profiler.audit()),
    )


def _ours() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("stepscope")]


def _opened() -> Counter[str]:
    """The targets of descriptors; source: proc(5)."""
    found: Counter[str] = Counter()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing
            found[os.readlink(f"/proc/self/fd/{name}")] += 1
    return found


if __name__ == "__main__":
    ended = main(int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
    print(msgspec.json.encode(ended).decode(), flush=True)
    sys.stdin.read()  # until the watcher has looked at what is left

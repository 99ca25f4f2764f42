"""A training loop whose process is short of something, as a program: what it recorded, and what that cost.

usage: python -m tests.stress.torture.strain WHAT DIRECTORY
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path

import msgspec
import uvloop

import stepscope as sc
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.profiler import Profiler

STEPS = 100
SPANS = 100
"""Spans of a step, on each of the threads."""
THREADS = 4
HEADROOM = 64 << 20
"""Bytes that a process short of memory may grow by."""
TRICKLE = 1 << 18
NAME = "work"


class RunReport(msgspec.Struct, kw_only=True):
    """The program's report of its run."""

    spans: int
    """Spans whose exit had returned."""
    steps: int
    """Calls of `step()`."""
    blocked_ns: int
    """Longest call of `step()`, or of a span's enter and exit."""
    closing_ns: int
    overflow: int
    """Events that the rings dropped."""
    dropped: dict[str, int]
    """Events of any kind, by output, for any reason."""
    others: int
    """Events that the Chrome trace got and has written and that are no spans of the loop: of steps, marks, gaps."""
    in_flight: int
    errors: dict[str, str]
    """First error of each output."""
    cut: dict[str, int]
    threads: list[str]
    """Our threads that still run after closing."""
    descriptors: list[str]
    """Files that are open after closing and were not before starting, but for the session's."""


class Counting(sc.ChromeTraceExporter):
    """A Chrome trace that counts its events other than spans of the loop."""

    others = 0

    async def export(self, batch: EventBatch) -> None:
        await super().export(batch)
        self.others += int((batch.events["name"] != strings.intern(NAME)).sum())


class SlowDisk(Counting):
    """Writes to a disk that takes `TRICKLE` bytes of events a second."""

    async def export(self, batch: EventBatch) -> None:
        await asyncio.to_thread(time.sleep, batch.nbytes / TRICKLE)
        await super().export(batch)


class Loop:
    """The training loop: steps, each with spans on several threads."""

    def __init__(self, profiler: Profiler) -> None:
        self._profiler = profiler
        self.spans = self.steps = 0
        self.blocked_ns = 0

    def work(self) -> None:
        """A thread's share of a step, and the longest that one span took."""
        now, worst = time.perf_counter_ns, 0
        for number in range(SPANS):
            before = now()
            with sc.span(NAME, number=number, text="some text"):
                pass
            worst = max(worst, now() - before)
        self.spans += SPANS  # between two checks of the interpreter for other threads
        self.blocked_ns = max(self.blocked_ns, worst)

    def step(self, threads: int = 1) -> None:
        """One step."""
        others = [threading.Thread(target=self.work) for _ in range(threads - 1)]
        for thread in others:
            thread.start()
        self.work()
        for thread in others:
            thread.join()
        before = time.perf_counter_ns()
        self._profiler.step()
        self.steps += 1
        self.blocked_ns = max(self.blocked_ns, time.perf_counter_ns() - before)

    def run(self, threads: int = 1, pause: float = 0.002) -> None:
        """All steps."""
        for _ in range(STEPS):
            self.step(threads)
            time.sleep(pause)


@contextlib.contextmanager
def no_descriptors() -> Generator[None]:
    """Leaves the process without a free descriptor."""
    descriptors: list[int] = []
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit[0], 256), limit[1]))
    with contextlib.suppress(OSError):
        while True:
            descriptors.append(os.open(os.devnull, os.O_RDONLY))
    try:
        yield
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)


@contextlib.contextmanager
def little_memory() -> Generator[None]:
    """Lets the process grow by `HEADROOM` only."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + HEADROOM, limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limit)


@contextlib.contextmanager
def full(directory: Path) -> Generator[None]:
    """Fills the file system of a directory."""
    with open(directory / "filler", "wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass
        yield


@contextlib.contextmanager
def clock_set_back() -> Generator[None]:
    """The wall clock, as Python reads it, is an hour behind from now on."""
    real = time.time_ns
    time.time_ns = lambda: real() - 3_600_000_000_000
    try:
        yield
    finally:
        time.time_ns = real


def train(what: str, place: Path, loop: Loop, stack: contextlib.ExitStack) -> None:
    """Runs the loop, short of something from its middle on."""
    loop.run(THREADS if what in ("descriptors", "memory", "shm") else 1)
    match what:
        case "descriptors":
            stack.enter_context(no_descriptors())
        case "memory":
            stack.enter_context(little_memory())
        case "shm":
            stack.enter_context(full(place / "shm"))
        case "clock":
            stack.enter_context(clock_set_back())
        case "tasks":
            asyncio.run(tasks(loop))
        case _:
            pass
    loop.run({"descriptors": 4 * THREADS, "shm": 4 * THREADS, "memory": THREADS}.get(what, 1))


async def tasks(loop: Loop) -> None:
    """The same work in tasks that come and go."""

    async def share() -> None:
        for _ in range(2):
            loop.work()
            await asyncio.sleep(0)

    for _ in range(STEPS):
        await asyncio.gather(*(share() for _ in range(THREADS)))


def main(what: str, place: Path) -> RunReport:
    """Trains, and returns the accounts."""
    session = str(place / "shm") if what == "shm" else None
    options = sc.Options(
        drain_interval=0.05, close_timeout=2.0, session_dir=session, queue_bytes=1 << 20 if what == "disk" else None
    )
    chrome = (SlowDisk if what == "disk" else Counting)(place / "trace.json")
    profiler = sc.trace(exporters=[chrome], output_dir=place / "run", options=options)
    threading.stack_size(1 << 18)  # of address space, which is what may be scarce
    uvloop.new_event_loop().close()  # libuv keeps a pipe for signals in every process that had a loop
    before = set(os.listdir("/proc/self/fd"))
    profiler.start()
    loop = Loop(profiler)
    with contextlib.ExitStack() as stack:
        train(what, place, loop, stack)
        began = time.perf_counter_ns()
        profiler.close()
        closing = time.perf_counter_ns() - began
    statistics = profiler.statistics()
    assert statistics.pipeline is not None and statistics.recorder is not None
    outputs = statistics.pipeline.exporters
    return RunReport(
        spans=loop.spans,
        steps=loop.steps,
        others=chrome.others,
        blocked_ns=loop.blocked_ns,
        closing_ns=closing,
        overflow=statistics.recorder.dropped,
        dropped={output.name: sum(output.ledger.dropped.values()) for output in outputs},
        in_flight=sum(output.ledger.in_flight for output in outputs),
        errors={output.name: output.first_error for output in outputs if output.errors},
        cut=statistics.recorder.cut,
        threads=our_threads(),
        descriptors=_left(before),  # after the threads, which close theirs
    )


def our_threads() -> list[str]:
    """Names of our threads, when those that were about to end have had a moment to."""
    until = time.monotonic() + 2
    while True:
        names = [thread.name for thread in threading.enumerate() if thread.name.startswith("stepscope")]
        if not names or time.monotonic() > until:
            return names
        time.sleep(0.01)


def _left(before: set[str]) -> list[str]:
    """Descriptors that are new, but for those that the process's recorder keeps: its tables and its wake."""
    session: Callable[[str], bool] = lambda name: "stepscope-" in name or "eventfd" in name  # noqa: E731
    found: list[str] = []
    for descriptor in set(os.listdir("/proc/self/fd")) - before:
        with contextlib.suppress(OSError):
            name = os.readlink(f"/proc/self/fd/{descriptor}")
            found += [] if session(name) or name.startswith("/proc/") else [name]
    return found


if __name__ == "__main__":
    print(msgspec.json.encode(main(sys.argv[1], Path(sys.argv[2]))).decode(), flush=True)

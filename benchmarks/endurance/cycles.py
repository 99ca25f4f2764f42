"""The program that starts and stops for ever, and samples itself.

usage: python -m benchmarks.endurance.cycles KIND COUNT DIRECTORY
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

import msgspec

import stepscope as sc
from benchmarks.endurance.heap import heap_in_use
from benchmarks.endurance.watch import Sample, sample, slope
from stepscope.runtime import _core
from stepscope.runtime.profiler import Profiler

SAMPLES = 20
OPTIONS = sc.Options(ring_slots=1024)
"""A ring that is soon touched as a whole: what grows then is a leak."""


class Kind(StrEnum):
    """The shape of a cycle."""

    RESTART = "start() and stop() of one profiler"
    LIFE = "a whole `with trace()`"
    ASYNC_LIFE = "a whole `async with trace()`"


class Cycles(msgspec.Struct, kw_only=True):
    """The measurements of all cycles."""

    kind: Kind
    count: int
    milliseconds: float
    """Of one cycle, mean."""
    samples: list[Sample]
    """`spans` counts cycles here."""
    tracks: list[int]
    names: list[int]
    """Sizes of the tables of the process, at each sample."""
    objects: list[int]
    """Python objects that the collector knows."""
    blocks: list[int]
    """Blocks that Python's own allocator has allocated."""
    heap: list[int]
    """Bytes that the system's has allocated, to Python as well; empty where it does not report them."""
    events: int
    """Recorded, and exported to each of two outputs unless a problem says otherwise."""
    problems: list[str]

    def grown(self, counts: list[int]) -> float:
        """How much more there is with each cycle, over the second half; 0 of what is not known.

        Args:
            counts: at each sample.
        """
        points = [(float(s.spans), float(count)) for s, count in zip(self.samples, counts, strict=bool(counts))]
        return slope(points[len(points) // 2 :])


class Watch:
    """Samples this process while it goes through its cycles."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._start = time.monotonic()
        self.samples: list[Sample] = []
        self.tracks: list[int] = []
        self.names: list[int] = []
        self.objects: list[int] = []
        self.blocks: list[int] = []
        self.heap: list[int] = []
        self._heap = heap_in_use()
        self.events = 0
        self.problems: list[str] = []

    def after(self, number: int) -> None:
        """A cycle has ended."""
        if (number + 1) % max(self._count // SAMPLES, 1):
            return
        gc.collect()
        time.sleep(0.1)  # worker threads that nobody needs end on their own
        seen = sample(os.getpid(), time.monotonic() - self._start, number + 1)
        assert seen is not None
        self.samples.append(seen)
        self.tracks.append(len(_core.tracks(1)))
        self.names.append(_core.strings_count())
        self.objects.append(len(gc.get_objects()))
        self.blocks.append(sys.getallocatedblocks())
        if self._heap is not None:
            self.heap.append(self._heap())

    def account(self, profiler: Profiler) -> None:
        """Checks that each output has what was recorded."""
        statistics = profiler.statistics()
        assert statistics.pipeline is not None
        accepted = sum(statistics.pipeline.windows.accepted.values())
        self.events += accepted
        for output in statistics.pipeline.exporters:
            if output.ledger.exported != accepted or output.errors:
                self.problems.append(f"{output.name}: {output.ledger} {output.first_error}")


def work(profiler: Profiler) -> None:
    """Records the events of a cycle."""
    with sc.span("work"):
        pass
    profiler.step()


def make(directory: Path) -> Profiler:
    """A profiler with two outputs; those of the one before are removed."""
    for name in ("run/journal", "trace.json"):
        (directory / name).unlink(missing_ok=True)
    chrome = sc.ChromeTraceExporter(directory / "trace.json")
    return sc.trace(output_dir=directory / "run", exporters=[chrome], options=OPTIONS)


def restart(count: int, directory: Path, watch: Watch) -> None:
    """Starts and stops one profiler."""
    with make(directory) as profiler:
        profiler.stop()
        for number in range(count):
            profiler.start()
            work(profiler)
            profiler.stop()
            watch.after(number)
    watch.account(profiler)


def life(count: int, directory: Path, watch: Watch) -> None:
    """Makes, starts and closes profilers."""
    for number in range(count):
        with make(directory) as profiler:
            work(profiler)
        watch.account(profiler)
        watch.after(number)


def async_life(count: int, directory: Path, watch: Watch) -> None:
    """The same inside a coroutine."""

    async def main() -> None:
        for number in range(count):
            async with make(directory) as profiler:
                work(profiler)
            watch.account(profiler)
            watch.after(number)

    asyncio.run(main())


KINDS: dict[Kind, Callable[[int, Path, Watch], None]] = {
    Kind.RESTART: restart,
    Kind.LIFE: life,
    Kind.ASYNC_LIFE: async_life,
}


def main(kind: Kind, count: int, directory: Path) -> Cycles:
    """Goes through them."""
    watch = Watch(count)
    start = time.monotonic()
    KINDS[kind](count, directory, watch)
    return Cycles(
        kind=kind,
        count=count,
        milliseconds=(time.monotonic() - start) / count * 1e3,
        samples=watch.samples,
        tracks=watch.tracks,
        names=watch.names,
        objects=watch.objects,
        blocks=watch.blocks,
        heap=watch.heap,
        events=watch.events,
        problems=watch.problems,
    )


if __name__ == "__main__":
    seen = main(Kind[sys.argv[1]], int(sys.argv[2]), Path(sys.argv[3]))
    print(msgspec.json.encode(seen).decode())

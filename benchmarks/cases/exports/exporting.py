"""Costs of exporting events, in any format: the encoder alone, and from events in memory to the complete file.

Times are processor time of the whole process, so rates are per core whatever else runs on the machine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.cases.tools.session import scratch, session
from benchmarks.cases.tools.span_load import emit
from benchmarks.harness.row import Contender, Round, Row, Sample
from benchmarks.harness.scale import Scale

if TYPE_CHECKING:
    from stepscope.exporters.base import Exporter
    from stepscope.runtime.events.record import EventBatch
    from stepscope.runtime.export.run import Run


def recorded(count: int) -> tuple[Run, list[EventBatch]]:
    """Batches of spans as they left the recorder."""
    import stepscope

    memory = stepscope.exporters.MemoryExporter()
    with session(exporters=[memory], options=stepscope.Options(journal=False)) as profiler:
        emit(stepscope.span, count)
        profiler.flush()
    assert memory.run is not None
    return memory.run, memory.batches


def slices(batches: Iterable[EventBatch]) -> Iterator[EventBatch]:
    """The same events, as many at a time as exporters of files encode."""
    from msgspec.structs import replace

    from stepscope.exporters.files.trace_file import SLICE

    for batch in batches:
        for at in range(0, len(batch), SLICE):
            yield replace(batch, events=batch.events[at : at + SLICE])


@contextmanager
def encoder(scale: Scale, encode: Callable[[Run, list[EventBatch]], int]) -> Generator[Round]:
    """An encoder by itself; `encode` gives the bytes that it made."""
    run, batches = recorded(scale.events)
    count = sum(len(batch) for batch in batches)

    def once() -> Sample:
        size = 0

        def work() -> None:
            nonlocal size
            size = encode(run, batches)

        return Sample(_rate(count, work), facts={"bytes per event": size / count})

    yield once


@contextmanager
def exporter(scale: Scale, make: Callable[[Path], Exporter], name: str) -> Generator[Round]:
    """An exporter that writes a file of this name."""
    run, batches = recorded(scale.events)

    async def export(path: Path) -> None:
        exporter = make(path)
        await exporter.open(run)
        for batch in batches:
            await exporter.export(batch)
        await exporter.aclose()

    count = sum(len(batch) for batch in batches)
    yield lambda: file(count, lambda path: asyncio.run(export(path)), name)


def file(count: int, write: Callable[[Path], object], name: str) -> Sample:
    """The time to write so many events to a file of this name."""
    with scratch() as directory:
        path = directory / name
        speed = _rate(count, lambda: write(path))
        return Sample(speed, facts={"bytes per event": path.stat().st_size / count})


def _rate(events: int, work: Callable[[], object]) -> float:
    """Millions of events per second of processor time."""
    start = time.process_time_ns()
    work()
    return events * 1e3 / max(time.process_time_ns() - start, 1)


def row(key: str, what: str, *contenders: Contender) -> Row:
    """A row of such a rate."""
    return Row(
        key=key, what=what, unit="M events/s", budget=5.0, more_is_better=True, heavy=True, contenders=contenders
    )

"""Merging the streams of four ranks: read, decompressed, aligned and written.

Times are processor time of the whole process, so rates are per core whatever else runs on the machine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from benchmarks.cases.tools.emission import emit
from benchmarks.cases.tools.session import scratch, session
from benchmarks.harness.row import Contender, Round, Row, Sample, Tool
from benchmarks.harness.scale import Scale

RANKS = 4


def _collect(directory: Path, events: int) -> None:
    """The streams as a collector would have them."""
    import msgspec

    import stepscope
    from stepscope.runtime.events.clock import ClockAnchor, now
    from stepscope.runtime.journal.records import ClockSync
    from stepscope.runtime.journal.writer import JournalWriter

    memory = stepscope.exporters.MemoryExporter()
    with session(exporters=[memory], options=stepscope.Options(journal=False)) as profiler:
        emit(stepscope.span, events)
        profiler.flush()
    assert memory.run is not None
    ahead = ClockAnchor.read().wall(0)
    for rank in range(RANKS):
        writer = JournalWriter(directory / f"rank{rank}" / "journal")
        writer.open(msgspec.structs.replace(memory.run, rank=rank, world_size=RANKS))
        at = now()
        for sent in range(at, at + 10**9, 10**8):
            arrived = ahead + sent + 50_000
            writer.write_sync(
                ClockSync(sent=sent, arrived=arrived, answered=arrived, returned=sent + 100_000, clock="collector")
            )
        for batch in memory.batches:
            writer.write_batch(batch)
        for window in memory.windows:
            writer.write_window(window)
        writer.close()


def _merge(name: str) -> Callable[[Scale], AbstractContextManager[Round]]:
    @contextmanager
    def probe(scale: Scale) -> Generator[Round]:
        from stepscope.collector.merge.outputs import write_merged

        with scratch() as directory:
            _collect(directory / "collected", max(scale.events // RANKS, 1))

            def once() -> Sample:
                start = time.process_time_ns()
                report = asyncio.run(write_merged([directory / "collected"], directory / name))
                return Sample(report.events * 1e3 / max(time.process_time_ns() - start, 1))

            yield once

    return probe


ROWS = tuple(
    Row(
        key=f"merge.{key}",
        what=f"merging {RANKS} ranks, {{events:,}} events, into {what}, one core",
        unit="M events/s",
        more_is_better=True,
        heavy=True,
        contenders=(Contender(Tool.STEPSCOPE, f"stepscope merge --out {name}", _merge(name)),),
    )
    for key, what, name in (
        ("chrome", "Chrome JSON", "merged.json"),
        ("perfetto", "Perfetto", "merged.pftrace"),
        ("parquet", "Parquet", "merged.parquet"),
    )
)

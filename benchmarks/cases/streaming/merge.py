"""Merging the streams of four ranks: read, decompressed, aligned and written.

Times are processor time of the whole process, so rates are per core whatever else runs on the machine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from benchmarks.cases.tools.session import scratch, session
from benchmarks.cases.tools.span_load import emit
from benchmarks.harness.row import Contender, Round, Row, Sample, Tool
from benchmarks.harness.scale import Scale

RANKS = 4
JOB_RANKS, JOB_WINDOWS = 1000, 10_000
"""Size of the job whose windows are looked for."""
EVENTS_PER_RANK = 5_000
"""Events of the scale for each rank that is measured; the cost of more ranks is in proportion."""


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


def _job(directory: Path, ranks: int) -> None:
    """The streams of a job with `JOB_WINDOWS` windows without events."""
    import msgspec

    import stepscope
    from stepscope.runtime.journal.segments import SEGMENT_BYTES
    from stepscope.runtime.journal.writer import JournalWriter
    from stepscope.runtime.windows.window import Step

    memory = stepscope.exporters.MemoryExporter()
    with session(exporters=[memory], options=stepscope.Options(journal=False)) as profiler:
        emit(stepscope.span, 1)
        profiler.flush()
    assert memory.run is not None
    window = memory.windows[0]
    for rank in range(ranks):
        writer = JournalWriter(directory / f"rank{rank}" / "journal", segment_bytes=SEGMENT_BYTES)
        writer.open(msgspec.structs.replace(memory.run, rank=rank, world_size=ranks))
        for index in range(JOB_WINDOWS):
            steps = (Step(index, window.start_ns, window.end_ns),)
            writer.write_window(msgspec.structs.replace(window, index=index, steps=steps))
        writer.close()


def _find_window(directory: Path) -> int:
    """Plans the merge of one window. Returns the processor time, in ns."""
    from stepscope.collector.merge.plan import Selection, plan, wanted
    from stepscope.collector.merge.sources import gather
    from stepscope.collector.runs.job import Job, jobs_of

    start = time.process_time_ns()
    selection = Selection(window=JOB_WINDOWS // 2)
    gathered = gather([directory], lambda: directory, wanted(selection))
    ((name, recordings),) = jobs_of(gathered.recordings).items()
    (found,) = plan(Job(name, recordings), selection)
    spent = time.process_time_ns() - start
    assert len(found.stretches) == len(recordings)
    return spent


@contextmanager
def _windows(scale: Scale) -> Generator[Round]:
    ranks = max(scale.events // EVENTS_PER_RANK, 2)
    with scratch() as directory:
        _job(directory / "one", 1)
        _job(directory / "several", ranks)

        def once() -> Sample:
            one, several = _find_window(directory / "one"), _find_window(directory / "several")
            return Sample((one + (several - one) * (JOB_RANKS - 1) / (ranks - 1)) / 1e9)

        yield once


def _merge(name: str) -> Callable[[Scale], AbstractContextManager[Round]]:
    @contextmanager
    def probe(scale: Scale) -> Generator[Round]:
        from stepscope.collector.merge.outputs import write_merged

        with scratch() as directory:
            _collect(directory / "collected", max(8 * scale.events // RANKS, 1))

            def once() -> Sample:
                (directory / name).unlink(missing_ok=True)  # to release the memory of a file takes time, too
                start = time.process_time_ns()
                report = asyncio.run(write_merged([directory / "collected"], directory / name))
                return Sample(report.events * 1e3 / max(time.process_time_ns() - start, 1))

            yield once

    return probe


ROWS = (
    *(
        Row(
            key=f"merge.{key}",
            what=f"merging {RANKS} ranks, {{eight_times_events:,}} events, into {what}, one core",
            unit="M events/s",
            budget=budget,
            more_is_better=True,
            heavy=True,
            contenders=(Contender(Tool.STEPSCOPE, f"stepscope merge --out {name}", _merge(name)),),
        )
        for key, what, name, budget in (
            ("chrome", "Chrome JSON", "merged.json", 10.0),
            ("perfetto", "Perfetto", "merged.pftrace", 10.0),
            ("parquet", "Parquet", "merged.parquet", 8.0),
        )
    ),
    Row(
        key="merge.windows",
        what=f"finding one window in a job of {JOB_RANKS:,} ranks with {JOB_WINDOWS:,} windows each, in proportion to fewer ranks, one core",
        unit="s",
        budget=1.0,
        heavy=True,
        contenders=(Contender(Tool.STEPSCOPE, "the plan of stepscope merge --window", _windows),),
    ),
)

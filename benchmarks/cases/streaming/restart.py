"""The start of a collector on the streams of a day: it reads the indexes, and the ends of all streams."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.cases.exports.exporting import recorded
from benchmarks.cases.tools.session import scratch
from benchmarks.harness.row import Contender, Round, Row, Sample, Tool
from benchmarks.harness.scale import Scale

SEGMENTS = 100_000
"""To which the time is scaled up."""
SEGMENTS_PER_STREAM = 35
STREAM_EVENTS = 1_000
"""Events of the scale for each stream that is measured; the cost of more streams is in proportion."""


def _collect(directory: Path, streams: int) -> None:
    """The streams of a job of so many ranks, of segments with one window of 200 events each."""
    from msgspec.structs import replace

    from stepscope.exporters.specimens import window_of
    from stepscope.runtime.journal.writer import JournalWriter

    run, batches = recorded(200)
    batch = batches[0]
    for rank in range(streams):
        writer = JournalWriter(directory / "streams" / f"{rank:032x}" / "journal", segment_bytes=1)
        writer.open(replace(run, rank=rank, world_size=streams, job="job", id=f"{rank:032x}"))
        for index in range(SEGMENTS_PER_STREAM // 2):  # each window ends in a segment of its own
            writer.write_batch(replace(batch, window=index))
            writer.write_window(window_of(index, batch))
        writer.close()


@contextmanager
def _restart(scale: Scale) -> Generator[Round]:
    from stepscope.collector.files.store import Store
    from stepscope.collector.live.startup_recovery import StartupRecovery
    from stepscope.collector.live.streams import Streams
    from stepscope.collector.settings import CollectorSettings

    count = max(scale.events // STREAM_EVENTS, 1)
    with scratch() as directory:
        _collect(directory, count)
        segments = sum(1 for _ in (directory / "streams").glob("*/journal*"))

        def once() -> Sample:
            start = time.perf_counter()
            streams = Streams(count)
            recovery = StartupRecovery(Store(CollectorSettings(directory=directory)), streams)
            recovery.look()
            asyncio.run(recovery.run())
            spent = time.perf_counter() - start
            assert len(streams.all) == count
            return Sample(spent * SEGMENTS / segments, facts={"segments": segments})

        yield once


ROWS = (
    Row(
        key="collector.restart",
        what=f"a collector's start on {SEGMENTS:,} segments, in proportion to fewer",
        unit="s",
        budget=5.0,
        heavy=True,
        contenders=(Contender(Tool.STEPSCOPE, "stepscope collect", _restart),),
    ),
)

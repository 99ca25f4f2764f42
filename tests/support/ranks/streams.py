"""Streams as a collector keeps them, made by hand."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stepscope.runtime.events import strings
from stepscope.runtime.events.record import EventBatch, Kind, empty_block
from stepscope.runtime.export.run import Run
from stepscope.runtime.journal.records import (
    ClockSync,
)
from stepscope.runtime.journal.writer import JournalWriter
from stepscope.runtime.windows.window import Window
from tests.support.viewers.scene import START, make_run, make_window


def write_stream(
    directory: Path, run: Run, batches: Sequence[EventBatch], windows: Sequence[Window], syncs: Sequence[ClockSync] = ()
) -> Path:
    """A stream of a collector's directory; a window without an end is left without, and so is a stream without windows."""
    path = directory / "streams" / uuid.uuid4().hex / "journal"
    writer = JournalWriter(path)
    writer.open(run)
    writer.write_metadata(run.metadata())
    for sync in syncs:
        writer.write_sync(sync)
    for batch in batches:
        writer.write_batch(batch)
    for window in windows:
        writer.write_window(window)
    if windows:
        writer.close()
    return path


def no_room() -> Path:
    """For merges of streams of which no two directories have a part each."""
    raise AssertionError("a stream was put together")


def write_many(directory: Path, ranks: int, events: int) -> None:
    """Streams of a job with one window each.

    Args:
        directory: of a collector.
        ranks: that the job has.
        events: spans of each.
    """
    for rank in range(ranks):
        run = msgspec.structs.replace(make_run(directory, rank), job="job", world_size=ranks)
        batches: list[EventBatch] = []
        for part in range(0, events, 50_000):
            block: Any = empty_block(min(50_000, events - part))
            block["kind"], block["dur"], block["track"] = int(Kind.SPAN), 500, 0
            block["ts"] = START + 1000 * (part + np.arange(len(block)))
            block["name"] = strings.intern(f"span of rank {rank}")
            batches.append(EventBatch("recorder", 0, block, b""))
        write_stream(directory, run, batches, [make_window()])

"""Streams as a collector keeps them, made by hand."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stepscope.runtime.events import strings
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.events.record import EventBatch, Kind, empty_block
from stepscope.runtime.export.run import Run
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.ids import IdMap
from stepscope.runtime.journal.records import (
    ClockSync,
    EndRecord,
    RunRecord,
    WindowRecord,
    decode_record,
    encode_record,
)
from stepscope.runtime.journal.writer import JournalWriter
from stepscope.runtime.windows.window import Window
from tests.support.journals import events_payloads
from tests.support.viewers.scene import START, make_run, make_window

Clock = Callable[[int], int]
"""What another clock shows, in ns, when the true one shows this."""
_UNKNOWN = 255
"""A type of frames that no reader knows."""


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


def on_another_clock(source: Path, target: Path, clock: Clock, name: str) -> None:
    """Copies a stream as a rank with another clock would have sent it: all times that this clock made are changed."""
    target.parent.mkdir(parents=True)
    _rewrite(source, target, lambda kind, flags, payload: _changed(kind, flags, payload, clock, name))


def _rewrite(source: Path, target: Path, change: Callable[[int, int, bytes], tuple[int, bytes]]) -> None:
    data = source.read_bytes()
    header = fmt.decode_file_header(data)
    assert header is not None
    sync = header.sync
    with open(target, "wb") as file:
        file.write(data[: fmt.FILE_HEADER.size])
        for kind, flags, number, payload in fmt.frames_in(data[fmt.FILE_HEADER.size :], sync):
            flags, changed = change(kind, flags, bytes(payload))
            # Its frames have other sizes, so no index holds: readers skip frames of unknown types.
            kind = _UNKNOWN if kind == fmt.FrameType.INDEX else kind
            for piece in fmt.encode_frame(sync, kind, number, [changed], flags):
                file.write(piece)


def _changed(kind: int, flags: int, payload: bytes, clock: Clock, name: str) -> tuple[int, bytes]:
    if kind == fmt.FrameType.EVENTS:
        return _events(payload, flags, clock)
    record = decode_record(kind, payload)
    match record:
        case ClockSync():
            record = msgspec.structs.replace(record, sent=clock(record.sent), returned=clock(record.returned))
        case ClockAnchor():
            record = _anchor(record, clock)
        case RunRecord():
            record = msgspec.structs.replace(record, anchor=_anchor(record.anchor, clock), clock=name)
        case WindowRecord():
            steps = np.frombuffer(record.steps, "<i8").reshape(-1, 3).copy()
            steps[:, 1:] = [[clock(at) for at in row] for row in steps[:, 1:].tolist()]
            record = msgspec.structs.replace(
                record, start_ns=clock(record.start_ns), end_ns=clock(record.end_ns), steps=steps.tobytes()
            )
        case EndRecord():
            record = msgspec.structs.replace(record, index=0)
        case _:
            return flags, payload
    return flags, encode_record(record)


def _anchor(anchor: ClockAnchor, clock: Clock) -> ClockAnchor:
    return msgspec.structs.replace(anchor, monotonic_ns=clock(anchor.monotonic_ns))


def _events(payload: bytes, flags: int, clock: Clock) -> tuple[int, bytes]:
    decoded = fmt.decode_columns(payload, flags, IdMap())
    assert decoded is not None
    header, events, args = decoded
    starts = events["ts"].tolist()
    ends = (events["ts"] + np.maximum(events["dur"], 0)).tolist()
    events["ts"] = [clock(at) for at in starts]
    events["dur"] = [clock(end) - clock(at) for at, end in zip(starts, ends, strict=True)]
    batch = EventBatch(header.source, header.window, events, bytes(args))
    ((flags, payload),) = events_payloads(batch)
    return flags, payload

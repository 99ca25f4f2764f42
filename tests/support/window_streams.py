"""Streams of windows, made by hand: how much each takes is known to the byte, unless it is packed."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from stepscope.collector.files.store import Store
from stepscope.runtime import _core
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.events.record import Block, EventBatch, empty_block
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.columns import HEADER
from stepscope.runtime.journal.records import EndRecord, RunRecord, WindowRecord, encode_record
from stepscope.runtime.journal.segments import segment_path
from tests.support.journals import events_payloads
from tests.support.streams import SYNC

SECOND = 10**9
START = 1_700_000_000 * SECOND

Frame = tuple[int, int, bytes]
"""Type, flags, payload."""


def run_of(rank: int | None = 0, began: int = 0) -> Frame:
    """The stream's process: it began so many seconds after the first, and its clock is Unix time."""
    at = START + began * SECOND
    run = RunRecord(name="job", anchor=ClockAnchor(at, at, 0), rank=rank, world_size=2, host="host", pid=began + 1)
    return int(fmt.FrameType.RUN), 0, encode_record(run)


def events(window: int, nbytes: int, second: int, packed: bool = False) -> Frame:
    """Events of a window, of so many bytes in all before they are packed, at one second.

    Packed as `CollectorExporter` does, they take about a tenth of that, as those of a real run do.
    """
    block = empty_block(nbytes // 64)
    block["ts"] = START + second * SECOND
    if packed:
        noise = np.random.default_rng(window * 1000 + second)
        block["ts"] += np.sort(noise.integers(0, SECOND, len(block)))
        block["dur"] = noise.integers(1000, 1_000_000, len(block))
    if not packed:
        return of_size(block, window, fmt.EVENTS_HEADER.size + 8 + block.nbytes)
    ((flags, payload),) = events_payloads(EventBatch("recorder", window, block, b""))
    return int(fmt.FrameType.EVENTS), flags, payload


def of_size(block: Block, window: int, nbytes: int) -> Frame:
    """Events whose payload has so many bytes, if they do not need more: they are not compressed, and have arguments that fill it."""
    block = block.copy()
    payload, fill = _uncompressed(block, window, b""), 0
    for _ in range(6 if len(block) and len(payload) < nbytes else 0):  # the length of a length may change
        fill = max(fill + nbytes - len(payload), 0)
        each, more = divmod(fill, len(block))
        arguments = [_core.encode_arguments({"f": "x" * (each + (at < more))}) for at in range(len(block))]
        block["args_len"] = [len(encoded) for encoded in arguments]
        block["args_at"] = np.cumsum([0, *map(len, arguments[:-1])])
        payload = _uncompressed(block, window, b"".join(arguments))
    return int(fmt.FrameType.EVENTS), fmt.COLUMNS, payload


def _uncompressed(block: Block, window: int, heap: bytes) -> bytes:
    ((_, payload),) = events_payloads(EventBatch("recorder", window, block, heap))
    begin = fmt.EVENTS_HEADER.size + len(b"recorder") + HEADER.size
    length, _, _ = HEADER.unpack_from(payload, begin - HEADER.size)
    return payload[:begin] + _core.decompress(payload[begin:], length)


def closed(window: int, first: int, second: int, seconds: float = 1.0) -> Frame:
    """The end of a window of two steps, the first of this number."""
    start, end = START + second * SECOND, START + int((second + seconds) * SECOND)
    middle = (start + end) // 2
    steps = struct.pack("<6q", first, start, middle, first + 1, middle, end)
    record = WindowRecord(index=window, start_ns=start, end_ns=end, steps=steps, complete=True)
    return int(fmt.FrameType.WINDOW_CLOSED), 0, encode_record(record)


def windows(
    numbers: range,
    nbytes: int,
    *,
    began: int = 0,
    first: int = 0,
    frames: int = 4,
    ended: bool = True,
    packed: bool = False,
) -> Iterator[Frame]:
    """Windows of two steps and a second each, one after the other; their events are in several frames.

    Args:
        numbers: their indices in the stream.
        nbytes: of events, of each.
        began: second of the first.
        first: number of its first step.
        frames: of each.
        ended: whether the last one is closed.
        packed: how their events are compressed.
    """
    for at, window in enumerate(numbers):
        for _ in range(frames):
            yield events(window, nbytes // frames, began + at, packed)
        if ended or window != numbers[-1]:
            yield closed(window, first + 2 * at, began + at)


END: Frame = (int(fmt.FrameType.END), 0, encode_record(EndRecord(events=0, windows=0)))


def encoded(frames: list[Frame], first: int = 0) -> bytes:
    """Frames as they stand in a file, and are sent."""
    return b"".join(
        bytes(part)
        for number, (kind, flags, payload) in enumerate(frames, first)
        for part in fmt.encode_frame(SYNC, kind, number, [payload], flags)
    )


def stored(store: Store, id: str, *segments: list[Frame]) -> Path:
    """The journal of a stream with these frames, in these segments."""
    path = store.path(id)
    path.parent.mkdir(mode=0o700)
    number, begin = 0, fmt.FILE_HEADER.size
    for at, frames in enumerate(segments):
        data = encoded(frames, number)
        segment_path(path, at).write_bytes(fmt.encode_file_header(SYNC, at, begin) + data)
        number, begin = number + len(frames), begin + len(data)
    return path

"""Brings the live state back after a start of the collector: it reads the files, in the background."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from stepscope.collector.files.disk import Disk
from stepscope.collector.files.store import Store, passed_over
from stepscope.collector.live.stream import STEPS, Frame, Stream
from stepscope.collector.live.streams import Streams
from stepscope.collector.runs.evicted import beyond, gaps_of, read_evicted
from stepscope.collector.runs.recording import run_in
from stepscope.runtime.accounting.ledger import MAX_COUNT
from stepscope.runtime.errors import FormatError
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.frame_reader import FrameReader
from stepscope.runtime.journal.index import ROW, ROWS, index_records
from stepscope.runtime.journal.records import RunRecord
from stepscope.runtime.journal.segments import SEGMENT_AGE_S, segment_paths

log = logging.getLogger("stepscope.collector")

T = TypeVar("T")

_MOST_BYTES = 4 << 20
"""Of frames that are read together."""
_BLOCK = 1 << 16
"""Bytes of small ones that are read at once."""
READ_BYTES = 128 << 20
"""The last bytes of a stream, whose frames are read; of those before, its indexes are."""


class _Part(msgspec.Struct, frozen=True):
    """Some frames of a file, read on."""

    frames: list[Frame]
    events: int
    """Of frames of events that were passed over."""
    next: int
    """Number of the frame that follows."""


class _Earlier(msgspec.Struct, frozen=True):
    """Counts of the part of a stream whose frames are not read."""

    events: int = 0
    windows: int = 0
    """Windows that were closed in it."""
    dropped: int = 0
    """Events that these lost."""
    lost_frames: int = 0
    """Frames of segments that are missing in it, also of those that were evicted."""
    present: frozenset[int] = frozenset()
    """Numbers of its windows, of which all events are counted, also those that were evicted."""


class Restoring:
    """Reads the journals of a store one after the other, the newest first, on a thread of its own.

    Of the last part of a stream the frames are read, of events only the headers and the steps. Of what is before that the indexes
    are read: its windows and events are counted, and not shown one by one. A stream that is connected meanwhile is read to the end
    of its files, and goes on from there with what arrives: each frame counts once.
    """

    def __init__(self, store: Store, streams: Streams) -> None:
        self._store, self._streams = store, streams
        self._disk = Disk(1)

    def look(self) -> None:
        """Sees which files there are; to be called before streams are taken."""
        found = list[tuple[float, str, Path]]()
        for id, path in self._store.journals(passed_over):
            try:
                found.append((max(one.stat().st_mtime for one in segment_paths(path)), id, path))
            except OSError as error:
                passed_over(path, error)
        self._streams.unread = {id: path for _, id, path in sorted(found)}

    async def run(self) -> None:
        """Returns when every file was read."""
        unread = self._streams.unread
        while unread:
            id = next(reversed(unread))
            path = unread[id]
            try:
                await self._restore(id, path)
            except Exception as error:
                # Whatever is in it: the others are read, and it goes on with what arrives.
                log.warning("what %s holds is not shown: %s: %s", path, type(error).__name__, error)
            finally:
                stream = self._streams.all.get(id)
                if stream is not None:
                    stream.finish_restoring()
                unread.pop(id, None)

    async def _restore(self, id: str, path: Path) -> None:
        try:
            await self._read(lambda: self._keep_from_eviction(id))
            await self._restore_from(await self._read(lambda: FrameReader(path, follow=False)), id, path)
        finally:
            self._streams.being_restored = ""

    def _keep_from_eviction(self, id: str) -> None:
        with self._streams.restoring_lock:
            self._streams.being_restored = id

    async def _restore_from(self, reader: FrameReader, id: str, path: Path) -> None:
        try:
            restored = self._streams.all.get(id)
            run = await self._read(lambda: run_in(reader)) if restored is None else restored.run
            if run is None:
                raise FormatError("it does not say whose it is")
            made, written = await self._read(lambda: _times(path))
            if id not in self._streams.unread:
                return  # another stream has taken its place meanwhile
            stream = self._stream(id, run, made, written)
            earlier = await self._read(lambda: _skip_earlier(reader))
            begin = reader.files.at(reader.position[1]).number
            stream.events += earlier.events
            stream.windows.count_unread(earlier.windows, earlier.dropped)
            evicted = await self._read(lambda: read_evicted(path))
            for one in evicted:
                stream.windows.evict(one)
                stream.events += 0 if one.first_window in earlier.present else one.events
            while True:
                arrived = stream.arrived
                part = await self._read(lambda: _read(reader))
                if part is not None:
                    await self._streams.decode_queue.add_restored(stream, part.frames, part.events, part.next)
                elif stream.arrived == arrived:
                    break  # nothing was written while the last read found nothing: what is taken from now on is not in here
            stream.finish_restoring()
            later = [one for one in evicted if one.segment > begin]
            damage = await self._read(lambda: beyond(reader.damage, gaps_of(reader, later)))
            first = reader.files.at(reader.files.begin).number
            counted = sum(one.frames for one in evicted if first < one.segment <= begin)
            stream.missing = max(earlier.lost_frames - counted, 0) + damage.lost_frames
            stream.bytes = reader.position[1]
        finally:
            self._disk.submit(reader.close)  # after what may still be read

    async def _read(self, work: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self._disk.submit(work))

    def _stream(self, id: str, run: RunRecord, made: int, written: float) -> Stream:
        stream = self._streams.all.get(id)
        if stream is None:
            stream = Stream(id, run, born_ns=made)
            stream.restoring = True
            stream.seen -= max(time.time() - written, 0.0)
            self._streams.add(stream)
        stream.born_ns = min(stream.born_ns, made)
        return stream


def _skip_earlier(reader: FrameReader) -> _Earlier:
    """Moves a reader to the last part of a stream, and counts what is before it by the indexes; nothing, if one is missing."""
    records = index_records(reader, gaps=True)
    end = reader.files.end
    while records and end - records[-1][0] < READ_BYTES:
        records.pop()
    if not records or not reader.resume_after(records[-1][0]):
        return _Earlier()
    stored = [record.rows[: len(record.rows) // ROW.size * ROW.size] for _, record in records]
    rows = np.frombuffer(b"".join(stored), ROWS)
    open = records[-1][1].open
    return _Earlier(
        events=_sum([*rows["events"].tolist(), *(count for one in open for count in one.events.values())]),
        windows=len(rows),
        dropped=_sum(rows["dropped"].tolist()),
        lost_frames=reader.lost_between_segments(records[-1][0]),
        present=frozenset([*rows["window"].tolist(), *(one.window for one in open)]),
    )


def _sum(counts: Iterable[int]) -> int:
    """The sum of counts of an index, which a rank made: none is negative, and the sum is within the bounds of counts."""
    return min(sum(max(count, 0) for count in counts), MAX_COUNT)


def _times(path: Path) -> tuple[int, float]:
    """Unix time at which the stream was seen first, or somewhat earlier, in ns; and of its last change, in seconds."""
    segments = segment_paths(path)
    made = os.stat(path.parent).st_mtime_ns
    if segments != [path]:
        made = min(made, segments[0].stat().st_mtime_ns - SEGMENT_AGE_S * 10**9)
    return made, segments[-1].stat().st_mtime


def _read(reader: FrameReader) -> _Part | None:
    """The next frames, those of events other than steps without their content; `None` at the end."""
    frames: list[Frame] = []
    events = nbytes = 0

    def passed(beginning: bytes) -> bool:
        nonlocal events
        found = fmt.decode_events_header(beginning)
        if found is None or found[0].source == STEPS:
            return False
        events += found[0].count
        return True

    before = reader.position[0]
    while nbytes < _MOST_BYTES:
        at = reader.position[0]
        found = reader.following(_BLOCK, passed)
        if reader.position[0] == at:
            frame = reader.next(passed)
            if frame is None:
                break
            found = [frame]
        frames += found
        nbytes += sum(len(payload) for _, _, payload in found)
    after = reader.position[0]
    return None if after == before else _Part(frames, events, after)

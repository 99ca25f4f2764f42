"""Brings the live state back after a start of the collector: it reads the files, in the background."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from stepscope.collector.files.store import Store, log_unreadable
from stepscope.collector.live.stream import STEPS, Frame, Stream
from stepscope.collector.live.streams import Streams
from stepscope.collector.runs.evicted import Evicted, beyond, gaps_of, read_evicted
from stepscope.collector.runs.recording import run_in
from stepscope.runtime.accounting.ledger import MAX_COUNT
from stepscope.runtime.errors import FormatError
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.frame_reader import FrameReader
from stepscope.runtime.journal.index import ROW, ROWS, IndexFrame, index_frames
from stepscope.runtime.journal.records import RunRecord
from stepscope.runtime.journal.segments import SEGMENT_AGE_S, segment_numbers, segment_path
from stepscope.runtime.loop_threads.loop_thread import DaemonExecutor

log = logging.getLogger("stepscope.collector")

T = TypeVar("T")

SEGMENTS_OF_A_DAY = 32
"""Segments of a stream that are open at once: those of a day, of an hour each, and some more."""
_MOST_BYTES = 4 << 20
"""Bytes of frames that are read together."""
_BLOCK = 1 << 16
"""Bytes of small frames that are read at once."""
AT_ONCE = 2
"""Streams that are read at the same time."""
READ_BYTES = 128 << 20
"""The last bytes of a stream, whose frames are read, if there are few streams."""
INDEX_BYTES = 32 << 20
"""Memory for the indexes of one stream: those of 300,000 windows. The newest count."""
ALL_BYTES = 2 << 30
ALL_FILES = 4096
"""Bytes and segments of all streams together whose frames are read; of each two segments, however many streams there are, and
what follows its newest index."""


class _Part(msgspec.Struct, frozen=True):
    """Frames of a file that were read together."""

    frames: list[Frame]
    events: int
    """Events in skipped frames."""
    next: int
    """Number of the frame that follows."""
    is_last: bool
    """Whether no complete frame follows."""
    missing: int = 0
    """Frames that are missing in what was read so far."""
    nbytes: int = 0
    """Bytes of the file up to the end of this part."""


class _Tail(msgspec.Struct):
    """The end of a stream, whose frames are read, and counts of what is before it, by the indexes."""

    reader: FrameReader
    run: RunRecord | None
    made: int
    written: float
    evicted: list[Evicted]
    segments: tuple[int, int]
    """Numbers of the first segment, and of that in which the end begins."""
    events: int = 0
    windows: int = 0
    dropped: int = 0
    lost_frames: int = 0
    """Frames that are missing between segments, also of those that were evicted."""
    present: set[int] = msgspec.field(default_factory=set[int])
    """Numbers of the windows of which all events are counted, also those that were evicted; of a stream that has such events."""


class StartupRecovery:
    """Reads the journals of a store, the newest first, on threads of its own.

    Of the end of a stream the frames are read, of events only the headers and the steps. How much that is depends on the number of
    streams. The windows and events before that are counted by the indexes; they are not shown one by one. A stream that is connected
    meanwhile is read to the end of its files, and goes on from there with what arrives: each frame counts once.
    """

    def __init__(self, store: Store, streams: Streams) -> None:
        self._store, self._streams = store, streams
        self._threads: Executor | None = None
        self._read_bytes, self._files = READ_BYTES, ALL_FILES
        self._begun: set[str] = set()

    def look(self) -> None:
        """Lists the files. Must be called before streams are accepted."""
        found = list[tuple[float, str, Path]]()
        for id, path in self._store.journals():
            try:
                newest = segment_path(path, segment_numbers(path)[-1])
                found.append((os.stat(newest).st_mtime, id, path))
            except OSError as error:
                log_unreadable(path, error)
        self._streams.unread = {id: path for _, id, path in sorted(found)}
        count = max(len(found), 1)
        self._read_bytes, self._files = min(READ_BYTES, ALL_BYTES // count), max(ALL_FILES // count, 2)

    async def run(self) -> None:
        """Returns when every file was read."""
        self._threads = DaemonExecutor(AT_ONCE)
        try:
            await asyncio.gather(*(self._restore_all() for _ in range(AT_ONCE)))
        finally:
            self._threads.shutdown()

    async def _restore_all(self) -> None:
        """Restores the streams that remain; several tasks do that together."""
        unread = self._streams.unread
        while (id := next((id for id in reversed(unread) if id not in self._begun), None)) is not None:
            self._begun.add(id)
            path = unread[id]
            try:
                await self._restore(id, path)
            except Exception as error:
                # The content of one file never stops the start: the others are read, and new frames arrive.
                log.warning("what %s holds is not shown: %s: %s", path, type(error).__name__, error)
            finally:
                if (stream := self._streams.all.get(id)) is not None:
                    stream.finish_restoring()
                unread.pop(id, None)

    async def _restore(self, id: str, path: Path) -> None:
        stream = self._streams.all.get(id)
        arrived = 0 if stream is None else stream.arrived
        tail, part = await self._read(lambda: _open_tail(path, self._read_bytes, self._files))
        try:
            await self._restore_tail(tail, part, id, arrived)
        finally:
            tail.reader.close()

    async def _restore_tail(self, tail: _Tail, part: _Part, id: str, arrived: int) -> None:
        stream = self._streams.all.get(id)
        run = tail.run if stream is None else stream.run
        if run is None:
            raise FormatError("it does not say whose it is")
        if id not in self._streams.unread:
            return  # another stream has taken its place meanwhile
        stream = self._stream(id, run, tail.made, tail.written)
        stream.events += tail.events
        stream.windows.count_unread(tail.windows, tail.dropped)
        for one in tail.evicted:
            stream.windows.evict(one)
        while True:
            await self._streams.decode_queue.add_restored(stream, part.frames, part.events, part.next)
            if part.is_last and stream.arrived == arrived:
                break  # nothing was written since the read began: what is taken from now on is not in here
            arrived = stream.arrived
            part = await self._read(lambda: _read(tail))
        stream.finish_restoring()
        first, begin = tail.segments
        known = sum(one.frames for one in tail.evicted if first < one.segment <= begin)
        stream.missing += part.missing + max(tail.lost_frames - known, 0)
        stream.bytes += part.nbytes + sum(one.nbytes for one in tail.evicted)
        stream.events += sum(one.events for one in tail.evicted if one.first_window not in tail.present)

    async def _read(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _stream(self, id: str, run: RunRecord, made: int, written: float) -> Stream:
        stream = self._streams.all.get(id)
        if stream is None:
            stream = Stream(id, run, born_ns=made)
            stream.restoring = True
            stream.seen -= max(time.time() - written, 0.0)
            self._streams.add(stream)
        self._streams.seen_first(stream, made)
        return stream


def _open_tail(path: Path, read_bytes: int, files: int) -> tuple[_Tail, _Part]:
    """Finds the end of a stream of which the frames are read, and reads the first of them."""
    reader = FrameReader(path, follow=False, max_descriptors=SEGMENTS_OF_A_DAY)
    try:
        tail = _Tail(reader, run_in(reader), *_times(reader), read_evicted(path), (0, 0))
        _skip_earlier(tail, read_bytes, files)
        reader.files.close_before(reader.position[1])
        tail.segments = (reader.files.at(reader.files.begin).number, reader.files.at(reader.position[1]).number)
        return tail, _read(tail)
    except BaseException:
        reader.close()
        raise


def _skip_earlier(tail: _Tail, read_bytes: int, files: int) -> None:
    """Moves the reader to the last part of a stream, and counts what is before it by the indexes, unless one is missing."""
    reader = tail.reader
    end = least = reader.files.end
    for _ in range(files):
        least = reader.files.at(least).begin
    indexes = index_frames(reader, gaps=True, most_bytes=INDEX_BYTES)
    fewest = int(bool(indexes) and indexes[0].record.before >= reader.files.begin)  # 1: older ones were left out
    while len(indexes) > fewest and indexes[-1].position > max(least, end - read_bytes):
        indexes.pop()
    if not indexes:
        return
    reader.resume(indexes[-1].number + 1, indexes[-1].end)
    stored = b"".join(one.record.rows[: len(one.record.rows) // ROW.size * ROW.size] for one in indexes)
    rows, open = np.frombuffer(stored, ROWS), indexes[-1].record.open
    tail.events = _sum([*rows["events"].tolist(), *(count for one in open for count in one.events.values())])
    tail.windows, tail.dropped = len(rows), _sum(rows["dropped"].tolist())
    if tail.evicted:
        tail.present = {*rows["window"].tolist(), *(one.window for one in open)}
    tail.lost_frames = _lost_between_segments(reader, indexes)


def _lost_between_segments(reader: FrameReader, indexes: Sequence[IndexFrame]) -> int:
    """Frames that are missing before the last index, between segments: by the numbers of the last index of each segment, with which it
    ends, and of the first frame of the next one.

    Args:
        reader: of the stream.
        indexes: the index frames, in their order.
    """
    lost = 0
    for latest, index in pairwise(indexes):
        following = reader.files.next_begin(latest.position)
        if following is not None and following <= index.position:
            number = reader.first_number(following)
            lost += 0 if number is None else max(number - latest.number - 1, 0)
    return lost


def _sum(counts: Iterable[int]) -> int:
    """The sum of counts of an index, which a rank made: none is negative, and the sum is within the bounds of counts."""
    return min(sum(count for count in counts if count > 0), MAX_COUNT)


def _times(reader: FrameReader) -> tuple[int, float]:
    """Unix time at which the stream was seen first, or somewhat earlier, in ns; and of its last change, in seconds."""
    first, last = reader.files.at(reader.files.begin), reader.files.at(reader.files.end)
    made = os.stat(reader.path.parent).st_mtime_ns
    if (first.number, last.number) != (0, 0):
        made = min(made, os.stat(first.name).st_mtime_ns - SEGMENT_AGE_S * 10**9)
    return made, os.stat(last.name).st_mtime


def _read(tail: _Tail) -> _Part:
    """The next frames, those of events other than steps without their content."""
    reader = tail.reader
    frames: list[Frame] = []
    events = nbytes = 0
    is_last = False

    def passed(beginning: bytes) -> bool:
        nonlocal events
        found = fmt.decode_events_header(beginning)
        if found is None or found[0].source == STEPS:
            return False
        events += found[0].count
        return True

    while nbytes < _MOST_BYTES and not is_last:
        at = reader.position[0]
        found = reader.following(_BLOCK, passed)
        if reader.position[0] == at:
            frame = reader.next(passed)
            found = [] if frame is None else [frame]
            is_last = frame is None
        frames += found
        nbytes += sum(len(payload) for _, _, payload in found)
    if not is_last:
        return _Part(frames, events, reader.position[0], is_last)
    later = [one for one in tail.evicted if one.segment > tail.segments[1]]
    missing = beyond(reader.damage, gaps_of(reader, later)).lost_frames
    return _Part(frames, events, reader.position[0], is_last, missing, reader.files.frame_bytes(reader.position[1]))

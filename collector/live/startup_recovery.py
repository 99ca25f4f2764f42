"""Brings the live state back after a start of the collector: it reads the files, in the background."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from stepscope.collector.files.store import Store, log_unreadable
from stepscope.collector.live.footers import read_footer
from stepscope.collector.live.stream import STEPS, Frame, Stream
from stepscope.collector.live.streams import Streams
from stepscope.collector.runs.evicted import Evicted, beyond, gaps_of, read_evicted
from stepscope.collector.runs.recording import run_in
from stepscope.runtime.accounting.ledger import MAX_COUNT
from stepscope.runtime.errors import FormatError
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.frame_reader import FrameReader
from stepscope.runtime.journal.index import ROW, ROWS, index_records
from stepscope.runtime.journal.records import RunRecord, WindowSoFar
from stepscope.runtime.journal.segments import SEGMENT_AGE_S, segment_numbers, segment_path
from stepscope.runtime.loop_threads.loop_thread import DaemonExecutor

log = logging.getLogger("stepscope.collector")

T = TypeVar("T")

_MOST_BYTES = 4 << 20
"""Of frames that are read together."""
_BLOCK = 1 << 16
"""Bytes of small ones that are read at once."""
AT_ONCE = 2
"""Streams that are read at the same time."""
TOGETHER = 32
"""Streams whose earlier segments are counted together."""
READ_BYTES = 128 << 20
"""The last bytes of a stream, whose frames are read, if there are few streams."""
ALL_BYTES = 2 << 30
ALL_FILES = 4096
"""Bytes and segments of all streams together whose frames are read; of each two segments, however many streams there are, and
what follows its newest index."""


class _Part(msgspec.Struct, frozen=True):
    """Some frames of a file, read on."""

    frames: list[Frame]
    events: int
    """Of frames of events that were passed over."""
    next: int
    """Number of the frame that follows."""
    is_last: bool
    """Whether no complete frame follows."""
    missing: int = 0
    """Frames that are missing in what was read so far."""
    nbytes: int = 0
    """Of all frames that were read or passed over so far, and of those before them in the same segments."""


class _Counts(msgspec.Struct):
    """Counts of segments, or parts of them, whose frames are not read."""

    events: int = 0
    windows: int = 0
    """Windows that were closed in them."""
    dropped: int = 0
    """Events that these lost."""
    lost_frames: int = 0
    """Frames of segments that are missing between them, also of those that were evicted."""
    nbytes: int = 0
    """Of frames."""
    present: set[int] = msgspec.field(default_factory=set[int])
    """Numbers of their windows, of which all events are counted, also those that were evicted."""

    def add(self, indexes: Sequence[memoryview], open: Sequence[WindowSoFar]) -> None:
        """Adds the rows of indexes, and windows that go on after the last of them."""
        rows = np.frombuffer(b"".join(one[: len(one) // ROW.size * ROW.size] for one in indexes), ROWS)
        self.events += _sum([*rows["events"].tolist(), *(count for one in open for count in one.events.values())])
        self.windows += len(rows)
        self.dropped += _sum(rows["dropped"].tolist())
        self.present.update(rows["window"].tolist(), (one.window for one in open))


class _Tail(msgspec.Struct):
    """The end of a stream, whose frames are read."""

    reader: FrameReader
    run: RunRecord | None
    made: int
    written: float
    counts: _Counts
    """Of what is before it in the same segments."""
    starts_segment: bool
    """Whether nothing is."""
    evicted: list[Evicted]
    segments: tuple[int, int]
    """Numbers of the first segment that is read, and of that in which the end begins."""
    number: int
    """Of the first frame of that segment."""
    before: list[int]
    """Numbers of earlier segments."""


class StartupRecovery:
    """Reads the journals of a store, the newest first, on threads of its own.

    Of the end of a stream the frames are read, of events only the headers and the steps. How much that is depends on the number of
    streams. When the state of all streams is back, the windows and events before that are counted by the indexes of their
    segments; they are not shown one by one. A stream that is connected meanwhile is read to the end of its files, and goes on from
    there with what arrives: each frame counts once.
    """

    def __init__(self, store: Store, streams: Streams) -> None:
        self._store, self._streams = store, streams
        self._threads: Executor | None = None
        self._read_bytes, self._files = READ_BYTES, ALL_FILES
        self._begun: set[str] = set()
        self._tails: dict[str, _Tail] = {}

    def look(self) -> None:
        """Sees which files there are; to be called before streams are taken."""
        found = list[tuple[float, str, Path]]()
        for id, path in self._store.journals(log_unreadable):
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
            await self._count_all()
        finally:
            self._threads.shutdown()
            self._tails.clear()

    async def _restore_all(self) -> None:
        """Restores the streams that remain; several tasks do that together."""
        unread = self._streams.unread
        while (id := next((id for id in reversed(unread) if id not in self._begun), None)) is not None:
            self._begun.add(id)
            path = unread[id]
            try:
                await self._restore(id, path)
            except Exception as error:
                # Whatever is in it: the others are read, and it goes on with what arrives.
                _log_skipped(path, error)
            finally:
                if (stream := self._streams.all.get(id)) is not None:
                    stream.finish_restoring()
                unread.pop(id, None)
                self._streams.being_restored.discard(id)

    async def _count_all(self) -> None:
        """Counts what is in the segments before those that were read."""
        uncounted, busy = self._streams.uncounted, self._streams.being_restored
        while uncounted:
            paths = dict(itertools.islice(reversed(uncounted.items()), TOGETHER))
            try:
                found = await self._read(lambda: self._counted(paths))  # noqa: B023
                for id, counted in found.items():
                    stream = self._streams.all.get(id)
                    if stream is not None:
                        self._add_counts(stream, self._tails[id], *counted)
            finally:
                for id in paths:
                    uncounted.pop(id, None)
                    self._tails.pop(id, None)
                busy.difference_update(paths)

    def _counted(self, paths: Mapping[str, Path]) -> dict[str, tuple[_Counts, list[Evicted], int]]:
        self._keep_from_eviction(paths)
        found: dict[str, tuple[_Counts, list[Evicted], int]] = {}
        for id, path in paths.items():
            try:
                found[id] = _counted(self._tails[id], path)
            except Exception as error:  # the others are counted
                _log_skipped(path, error)
        return found

    def _keep_from_eviction(self, ids: Iterable[str]) -> None:
        with self._streams.restoring_lock:
            self._streams.being_restored.update(ids)

    async def _restore(self, id: str, path: Path) -> None:
        arrived = self._arrived(id)
        tail, part = await self._read(lambda: self._open_tail(id, path))
        try:
            await self._restore_tail(tail, part, id, path, arrived)
        finally:
            tail.reader.close()

    def _open_tail(self, id: str, path: Path) -> tuple[_Tail, _Part]:
        self._keep_from_eviction([id])
        return _open_tail(path, self._read_bytes, self._files)

    async def _restore_tail(self, tail: _Tail, part: _Part, id: str, path: Path, arrived: int) -> None:
        stream = self._streams.all.get(id)
        run = tail.run if stream is None else stream.run
        if run is None:
            raise FormatError("it does not say whose it is")
        if id not in self._streams.unread:
            return  # another stream has taken its place meanwhile
        stream = self._stream(id, run, tail.made, tail.written)
        self._count_windows(stream, tail.counts)
        for one in tail.evicted:
            stream.windows.evict(one)
        while True:
            await self._streams.decode_queue.add_restored(stream, part.frames, part.events, part.next)
            if part.is_last and stream.arrived == arrived:
                break  # nothing was written since the read began: what is taken from now on is not in here
            arrived = stream.arrived
            part = await self._read(lambda: _read(tail))
        stream.finish_restoring()
        stream.missing += part.missing
        stream.bytes += part.nbytes
        if tail.before:
            self._tails[id] = tail
            self._streams.uncounted[id] = path
        else:
            self._count_evicted(stream, tail.counts, tail.evicted, tail.segments)

    def _add_counts(self, stream: Stream, tail: _Tail, counts: _Counts, evicted: list[Evicted], first: int) -> None:
        self._count_windows(stream, counts)
        stream.bytes += counts.nbytes
        for one in evicted:
            stream.windows.evict(one)
        counts.present |= tail.counts.present
        counts.lost_frames += tail.counts.lost_frames
        self._count_evicted(stream, counts, evicted, (first, tail.segments[1]))

    def _count_windows(self, stream: Stream, counts: _Counts) -> None:
        stream.events += counts.events
        stream.windows.count_unread(counts.windows, counts.dropped)

    def _count_evicted(
        self, stream: Stream, counts: _Counts, evicted: Sequence[Evicted], segments: tuple[int, int]
    ) -> None:
        """Counts what was evicted, and what is missing between two segments."""
        first, begin = segments
        stream.events += sum(one.events for one in evicted if one.first_window not in counts.present)
        stream.bytes += sum(one.nbytes for one in evicted)
        known = sum(one.frames for one in evicted if first < one.segment <= begin)
        stream.missing += max(counts.lost_frames - known, 0)

    def _arrived(self, id: str) -> int:
        stream = self._streams.all.get(id)
        return 0 if stream is None else stream.arrived

    async def _read(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _stream(self, id: str, run: RunRecord, made: int, written: float) -> Stream:
        stream = self._streams.all.get(id)
        if stream is None:
            stream = Stream(id, run, born_ns=made)
            stream.restoring = True
            stream.seen -= max(time.time() - written, 0.0)
            self._streams.add(stream)
        stream.born_ns = min(stream.born_ns, made)
        return stream


def _open_tail(path: Path, read_bytes: int, files: int) -> tuple[_Tail, _Part]:
    """Finds the end of a stream of which the frames are read, and reads the first of them."""
    segments = segment_numbers(path)
    least, size = len(segments), 0
    while least and size < read_bytes and len(segments) - least < files:
        least -= 1
        size += os.stat(segment_path(path, segments[least])).st_size
    made, written = _times(path, segments)
    reader = FrameReader(path, follow=False, since=segments[least])
    try:
        run = run_in(reader)
        number = reader.position[0]
        counts = _Counts()
        starts_segment = not _skip_earlier(reader, read_bytes, counts)
        numbers = reader.files.at(reader.files.begin).number, reader.files.at(reader.position[1]).number
        evicted = read_evicted(path)
        tail = _Tail(reader, run, made, written, counts, starts_segment, evicted, numbers, number, segments[:least])
        return tail, _read(tail)
    except BaseException:
        reader.close()
        raise


def _skip_earlier(reader: FrameReader, read_bytes: int, counts: _Counts) -> bool:
    """Moves a reader to the last part of a stream, and counts what is before it by the indexes; false, if there is nothing, or one
    of them is missing."""
    records = index_records(reader, gaps=True)
    end = reader.files.end
    while records and end - records[-1][0] < read_bytes:
        records.pop()
    if not records or not reader.resume_after(records[-1][0]):
        return False
    counts.add([record.rows for _, record in records], records[-1][1].open)
    counts.lost_frames = reader.lost_between_segments(records[-1][0])
    return True


def _counted(tail: _Tail, path: Path) -> tuple[_Counts, list[Evicted], int]:
    """Counts the segments before those that were read, by their footers. Also returns evicted segments that are counted nowhere, and
    the number of the first segment."""
    counts, rows, open = _Counts(), list[memoryview](), list[WindowSoFar]()
    following: int | None = None
    first = tail.segments[0]
    for segment in tail.before:
        try:
            footer = read_footer(segment_path(path, segment))
        except FileNotFoundError:
            continue  # evicted meanwhile
        if following is None:
            first = segment
        else:
            counts.lost_frames += _gap(following, footer.first)
        following = footer.next
        rows += footer.rows
        open = footer.open
        counts.events += footer.events
        counts.windows += footer.windows
        counts.nbytes += footer.nbytes
    if following is not None:
        counts.lost_frames += _gap(following, tail.number)
    counts.add(rows, open if tail.starts_segment else [])
    known = {one.segment for one in tail.evicted}
    evicted = [one for one in read_evicted(path) if one.segment < tail.segments[0] or one.segment in known]
    return counts, evicted, first


def _log_skipped(path: Path, error: Exception) -> None:
    log.warning("what %s holds is not shown: %s: %s", path, type(error).__name__, error)


def _gap(next: int, first: int) -> int:
    """Frames that are missing between two numbers, modulo 2**32."""
    missing = (first - next) & 0xFFFFFFFF
    return missing if missing < 1 << 31 else 0


def _sum(counts: Iterable[int]) -> int:
    """The sum of counts of an index, which a rank made: none is negative, and the sum is within the bounds of counts."""
    return min(sum(max(count, 0) for count in counts), MAX_COUNT)


def _times(path: Path, segments: Sequence[int]) -> tuple[int, float]:
    """Unix time at which the stream was seen first, or somewhat earlier, in ns; and of its last change, in seconds."""
    made = os.stat(path.parent).st_mtime_ns
    if segments != [0]:
        made = min(made, os.stat(segment_path(path, segments[0])).st_mtime_ns - SEGMENT_AGE_S * 10**9)
    return made, os.stat(segment_path(path, segments[-1])).st_mtime


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

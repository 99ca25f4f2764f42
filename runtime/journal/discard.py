"""Takes frames out of a journal in place: their disk blocks are freed, and the file stays whole for every reader."""

from __future__ import annotations

import ctypes
import errno
import os
import tempfile
import zlib
from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import msgspec

from stepscope.runtime.errors import FormatError
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal import given_up
from stepscope.runtime.journal.given_up import GivenUp

LONGEST = 1 << 20
"""Bytes up to which frames that are given up become one; each such frame leaves a header behind."""

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_UNABLE = (errno.EOPNOTSUPP, errno.ENOSYS)
_ZEROS = bytes(1 << 20)
_NUMBERS = 1 << 32
_MOVED = frozenset(
    {
        fmt.FrameType.RUN,
        fmt.FrameType.STRINGS,
        fmt.FrameType.TRACKS,
        fmt.FrameType.CLOCK,
        fmt.FrameType.METADATA,
        fmt.FrameType.WINDOW_OPENED,
        fmt.FrameType.WINDOW_CLOSED,
        fmt.FrameType.LEDGER,
        fmt.FrameType.CAP,
        fmt.FrameType.CLOCK_SYNC,
    }
)
"""Records: where they are does not matter, but for events that follow."""
_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
_fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a frame of a journal is that can be given up."""

    at: int
    number: int
    length: int
    """Bytes of its payload."""
    gone: GivenUp
    """What is said of it when it was."""

    @property
    def end(self) -> int:
        """Where the next frame begins."""
        return self.at + fmt.FRAME_HEADER.size + self.length


class EventsPlace(Place, frozen=True, kw_only=True):
    """That of a frame with events."""

    header: fmt.EventsHeader


class Made(msgspec.Struct, frozen=True):
    """A stretch of a journal in which other frames begin and end than before; no events are there."""

    at: int
    last: int
    """Where the last frame begins that stands for what was given up."""
    end: int


class Discarded(msgspec.Struct, frozen=True):
    """What one call of `discard` did."""

    freed: int
    """Bytes that the file takes less on disk than before; of one that was written to meanwhile, fewer than were freed."""
    made: list[Made]


class _Found(msgspec.Struct, frozen=True, gc=False):
    """A frame that a walk passed."""

    kind: int
    flags: int
    number: int
    at: int
    length: int
    beginning: bytes
    """Of its payload, as far as it tells what is there."""

    @property
    def end(self) -> int:
        """Where the next one begins."""
        return self.at + fmt.FRAME_HEADER.size + self.length

    @property
    def spans(self) -> bool:
        """Whether it stands for all frames since the one before it."""
        return self.kind != fmt.FrameType.EVENTS and bool(self.flags & fmt.SPANS)

    @property
    def gone(self) -> GivenUp | None:
        """What was there, if it was given up; nothing can be said of a frame that does not say it."""
        if self.kind not in given_up.KINDS:
            return None
        try:
            return given_up.decode(self.kind, self.beginning)
        except FormatError:
            return None


def places(path: Path, start: int = 0, end: int | None = None) -> Iterator[EventsPlace]:
    """The frames of a journal that have events; only headers are read.

    The walk ends where the file does, or is not whole.

    Args:
        path: the journal.
        start: byte at which a frame begins; 0: the first.
        end: byte before which frames begin; `None`: all.

    Raises:
        OSError: if it cannot be opened.
        FormatError: if it is no journal.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        for found in _walk(fd, _sync(fd, path), start or fmt.FILE_HEADER.size):
            if end is not None and found.at >= end:
                return
            place = events_place(found.at, found.number, found.length, found.beginning)
            if found.kind == fmt.FrameType.EVENTS and place is not None:
                yield place
    finally:
        os.close(fd)


def events_place(at: int, number: int, length: int, beginning: bytes) -> EventsPlace | None:
    """That of a frame of events, by the beginning of its payload; `None` if it contradicts itself."""
    decoded = fmt.decode_events_header(beginning)
    if decoded is None:
        return None
    header = decoded[0]
    return EventsPlace(at=at, number=number, length=length, gone=GivenUp({header.window: header.count}), header=header)


def block_bytes(directory: Path) -> int:
    """Bytes of the blocks in which the file system frees parts of files; 0 if it cannot, found out with a small file.

    Raises:
        OSError: if no file can be written there.
    """
    block = os.statvfs(directory).f_frsize or 4096
    descriptor, name = tempfile.mkstemp(".probe", ".", directory)
    try:
        os.unlink(name)
        os.write(descriptor, os.urandom(4 * block))
        os.fsync(descriptor)  # else there are file systems that have given it no blocks yet
        before = os.fstat(descriptor).st_blocks
        try:
            _punch(descriptor, block, 2 * block)
        except OSError as error:
            if error.errno in _UNABLE:
                return 0
            raise
        os.fsync(descriptor)
        freed = (before - os.fstat(descriptor).st_blocks) * 512 >= 2 * block
        return block if freed else 0
    finally:
        os.close(descriptor)


def discard(
    path: Path,
    chosen: Iterable[Place],
    *,
    start: int = 0,
    borders: Collection[int] = (),
    ended: Collection[int] = (),
) -> Discarded:
    """Gives up frames: those that lie next to each other, and next to others that were given up before, become one that
    says what was in them, and all blocks are freed that no other frame touches. Records between them move together.

    The file keeps its length, events their places, and all frames their order and numbers, so one that is being written may be
    given as well. If the process is killed meanwhile, frames are whole, or given up; what is not freed yet then, `free` frees.

    Args:
        path: the journal.
        chosen: those frames.
        start: byte at which a frame begins from which on they are looked for, with frames between that were given up before.
        borders: bytes at which no frame may begin or end within one that is made: somebody goes on to read there.
        ended: windows whose ends are among what is given up, or were: nobody asks how many events each of them had.

    Raises:
        OSError: if the file cannot be written, or its file system cannot free a part of it; that costs what was chosen at
            most.
        FormatError: if it is no journal.
    """
    wanted = {place.at: place for place in chosen}
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        sync = _sync(fd, path)
        before = os.fstat(fd).st_blocks
        last = max(wanted, default=-1)
        number = None if start > fmt.FILE_HEADER.size else -1
        region = _Region(fd, sync, ended, number)
        for found in _walk(fd, sync, start or fmt.FILE_HEADER.size):
            place = wanted.get(found.at)
            gone = found.gone if place is None else place.gone
            if found.at > last and (gone is None or not region.open):
                break
            if found.at in borders:
                region.close(number)
            number = found.number
            if any(found.at < border < found.end for border in borders):
                region.close(number)
            elif gone is not None or found.kind in _MOVED:
                region.add(found, gone, fresh=place is not None)
            else:
                region.close(number)
        region.close(number)
        return Discarded(max(before - os.fstat(fd).st_blocks, 0) * 512, region.made)
    finally:
        os.close(fd)


def free(path: Path, given: Iterable[tuple[int, int]]) -> int:
    """Frees the blocks of frames that say that they were given up: who was killed before may not have done so.

    Args:
        path: the journal.
        given: where these frames begin and end.

    Returns:
        Bytes that the file takes less on disk than before.

    Raises:
        OSError, FormatError: as `discard`.
    """
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        sync = _sync(fd, path)
        before = os.fstat(fd).st_blocks
        for at, end in given:
            found = next(_walk(fd, sync, at), None)
            if found is not None and found.end == end and found.kind == fmt.FrameType.GIVEN_UP and found.gone:
                kept = given_up.needed(found.beginning)
                _punch(fd, at + fmt.FRAME_HEADER.size + kept, found.length - kept)
        return max(before - os.fstat(fd).st_blocks, 0) * 512
    finally:
        os.close(fd)


class _Run(msgspec.Struct):
    """Frames next to each other of which nothing is left but what they were."""

    at: int
    end: int
    number: int
    """Of the last one."""
    gone: GivenUp
    spans: bool
    """Whether it stands for all frames since the one before it."""
    fresh: bool
    """Whether it is not written as one frame yet."""
    records: list[_Found] = []
    """That follow it."""

    @property
    def size(self) -> int:
        """Bytes from one frame to the next."""
        return self.end - self.at


class _Region:
    """Gives up what lies between two frames that stay where they are: runs, and records between them.

    The records move to the beginning, so that the runs around them become one. Where they go is nothing any more, and what is
    written there counts only when the run before is said to be shorter, which is one small write: who is killed leaves the
    one or the other.
    """

    def __init__(self, fd: int, sync: bytes, ended: Collection[int], before: int | None) -> None:
        """Args: the file; the mark of its frames; as of `discard`; number of the frame before, `None` if it is not known."""
        self._fd, self._sync, self._ended, self._before = fd, sync, ended, before
        self.made: list[Made] = []
        self._runs: list[_Run] = []

    @property
    def open(self) -> bool:
        """Whether there is a run."""
        return bool(self._runs)

    def add(self, found: _Found, gone: GivenUp | None, *, fresh: bool = False) -> None:
        """The next frame: gone, or a record, which stays, if nothing is said of it."""
        follows = found.spans or self._before is not None and found.number == (self._before + 1) % _NUMBERS
        if not follows:
            self.close(None)  # the number that is missing is to show
        self._before = found.number
        run = self._runs[-1] if self._runs else None
        if gone is None:
            if run is not None:
                run.records.append(found)
        elif run is None or run.records or not follows or found.end - run.at > LONGEST:
            # One that shows a missing number is alone: those after it are the next run.
            self._runs.append(_Run(found.at, found.end, found.number, gone, found.spans, fresh, []))
            if not follows:
                self.close(found.number)
        else:
            run.end, run.number, run.gone, run.spans, run.fresh = found.end, found.number, run.gone + gone, True, True

    def close(self, number: int | None) -> None:
        """The region ends here; the frame before the next one has this number."""
        runs, self._runs, self._before = self._runs, [], number
        if len(runs) < 2 and not any(run.fresh for run in runs):
            return
        start = runs[0].at
        while runs:
            run = runs.pop(0)
            beginning = given_up.encode(run.gone.without(self._ended))
            if fmt.FRAME_HEADER.size + len(beginning) > run.size:
                start = run.end  # it would say no less than it holds
                continue
            if run.fresh:
                os.pwrite(self._fd, self._frame(run, beginning, run.size), run.at)
            if (following := self._drawn_in(run, runs)) is not None:
                runs.insert(0, following)
                continue
            self.made.append(Made(start, run.at, run.end))
            start = run.end
            self._punch(run.at + fmt.FRAME_HEADER.size + len(beginning), run.end)

    def _drawn_in(self, run: _Run, runs: list[_Run]) -> _Run | None:
        """Moves records behind a run into it, as many as have room there, and takes what lies behind and between them away.

        Returns:
            The run that follows the records then; `None` if none could be moved.
        """
        size = fmt.FRAME_HEADER.size
        tail = given_up.encode(GivenUp())
        count, nbytes, gone, beginning = 0, 0, run.gone, b""
        records: list[_Found] = []
        for before, after in pairwise([run, *runs]):
            more = sum(record.end - record.at for record in before.records)
            both = gone + after.gone
            said = given_up.encode(both.without(self._ended))
            room = run.size - (size + len(said) + nbytes + more + size + len(tail))
            if room < 0 or not before.records or after.end - run.at > LONGEST:
                break
            count, nbytes, gone, beginning = count + 1, nbytes + more, both, said
            records += before.records
        if not count:
            return None
        last = runs[count - 1]
        at = run.at + size + len(beginning)
        made = _Run(at + nbytes, last.end, last.number, GivenUp(), spans=True, fresh=False, records=last.records)
        moved = [self._moved(record) for record in records]
        os.pwrite(self._fd, b"".join([*moved, self._frame(made, tail, made.size)]), at)
        os.pwrite(self._fd, self._frame(run, beginning, at - run.at), run.at)
        del runs[:count]
        return made

    def _moved(self, record: _Found) -> bytes:
        """A record as it stands where frames before it are gone."""
        frame = os.pread(self._fd, record.end - record.at, record.at)
        _, kind, flags, _, number, length, crc, _ = fmt.FRAME_HEADER.unpack_from(frame)
        return self._header(kind, flags | fmt.SPANS, number, length, crc) + frame[fmt.FRAME_HEADER.size :]

    def _frame(self, run: _Run, beginning: bytes, size: int) -> bytes:
        """What stands for a run, of so many bytes, without the zeros at its end."""
        length = size - fmt.FRAME_HEADER.size
        crc = _crc_of_zeros(length - len(beginning), zlib.crc32(beginning))
        flags = fmt.SPANS if run.spans else 0
        return self._header(fmt.FrameType.GIVEN_UP, flags, run.number, length, crc) + beginning

    def _header(self, kind: int, flags: int, number: int, length: int, crc: int) -> bytes:
        head = fmt.FRAME_HEADER.pack(self._sync, kind, flags, 0, number, length, crc, 0)[:-4]
        return head + zlib.crc32(head).to_bytes(4, "little")

    def _punch(self, at: int, end: int) -> None:
        try:
            _punch(self._fd, at, end - at)
        except OSError as error:
            if error.errno in _UNABLE:
                _clear(self._fd, at, end - at)  # the frame says that it is empty
            raise


def _walk(fd: int, sync: bytes, at: int) -> Iterator[_Found]:
    """The frames from a border on, as far as they are whole."""
    size = fmt.FRAME_HEADER.size
    while True:
        head = os.pread(fd, size + fmt.MAX_EVENTS_HEADER, at)
        frame = fmt.decode_frame_header(head, 0, sync) if len(head) >= size else None
        if frame is None:
            return
        kind, flags, number, length, _ = frame
        if at + size + length > os.fstat(fd).st_size:
            return
        beginning = head[size : size + length]
        if kind == fmt.FrameType.GIVEN_UP and (needed := min(given_up.needed(beginning), length)) > len(beginning):
            beginning = os.pread(fd, needed, at + size)
        yield _Found(kind, flags, number, at, length, beginning)
        at += size + length


def _sync(fd: int, path: Path) -> bytes:
    sync = fmt.decode_file_header(os.pread(fd, fmt.FILE_HEADER.size, 0))
    if sync is None:
        raise FormatError(f"{path} is not a stepscope journal, or its beginning is destroyed")
    return sync


def _crc_of_zeros(count: int, crc: int) -> int:
    while count > 0:
        crc = zlib.crc32(_ZEROS[: min(count, len(_ZEROS))], crc)
        count -= len(_ZEROS)
    return crc


def _punch(fd: int, at: int, count: int) -> None:
    """Frees bytes of a file, which read as zeros then."""
    if count > 0 and _fallocate(fd, _KEEP_SIZE | _PUNCH_HOLE, at, count):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def _clear(fd: int, at: int, count: int) -> None:
    while count > 0:
        written = os.pwrite(fd, _ZEROS[: min(count, len(_ZEROS))], at)
        at += written
        count -= written

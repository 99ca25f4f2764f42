"""Takes frames out of a journal in place: their disk blocks are freed, and the file stays whole for every reader."""

from __future__ import annotations

import ctypes
import errno
import os
import tempfile
import zlib
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import msgspec

from stepscope.runtime.errors import FormatError
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal import given_up
from stepscope.runtime.journal.given_up import GivenUp

LONGEST = 4 << 20
"""Bytes up to which frames that are given up become one; each such frame leaves a header behind."""

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_UNABLE = (errno.EOPNOTSUPP, errno.ENOSYS)
_ZEROS = bytes(1 << 20)
_NUMBERS = 1 << 32
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


class Discarded(msgspec.Struct, frozen=True):
    """What one call of `discard` did."""

    freed: int
    """Bytes that the file takes less on disk than before; of one that was written to meanwhile, fewer than were freed."""
    runs: list[tuple[int, int]]
    """Where the frames begin and end that took the place of those."""


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
        return self.kind == fmt.FrameType.GIVEN_UP and bool(self.flags & fmt.SPANS)

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
    says what was in them, and all blocks are freed that no other frame touches.

    The file keeps its length, other frames keep their places and numbers, so one that is being written may be given as well.
    If the process is killed meanwhile, frames are whole, or given up; what is not freed yet then, `free` frees.

    Args:
        path: the journal.
        chosen: those frames.
        start: byte at which a frame begins from which on they are looked for, with frames between that were given up before.
        borders: bytes at which no frame may begin or end within one that is made: somebody goes on to read there.
        ended: windows whose ends are among what is given up, or were: nobody asks how many events each of them had.

    Raises:
        OSError: if the file cannot be written, or its file system cannot free a part of it; that costs one run of frames at
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
        runs = _Runs(fd, sync, ended, number)
        for found in _walk(fd, sync, start or fmt.FILE_HEADER.size):
            place = wanted.get(found.at)
            gone = found.gone if place is None else place.gone
            if found.at in borders:
                runs.close(number)
            number = found.number
            if gone is None or any(found.at < border < found.end for border in borders):
                runs.close(number)
            else:
                runs.add(found, gone, fresh=place is not None)
            if found.at > last and not runs.open:
                break
        runs.close(number)
        return Discarded(max(before - os.fstat(fd).st_blocks, 0) * 512, runs.made)
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


class _Runs:
    """Makes one frame of each run of frames that are given up; who walks adds them, and says where a run ends."""

    def __init__(self, fd: int, sync: bytes, ended: Collection[int], before: int | None) -> None:
        """Args: the file; the mark of its frames; as of `discard`; number of the frame before, `None` if it is not known."""
        self._fd, self._sync, self._ended = fd, sync, ended
        self.made: list[tuple[int, int]] = []
        self._frames: list[_Found] = []
        self._gone = GivenUp()
        self._fresh = False
        self._before = before

    @property
    def open(self) -> bool:
        """Whether there is one."""
        return bool(self._frames)

    def add(self, found: _Found, gone: GivenUp, *, fresh: bool) -> None:
        """The next frame of a run, or the first of the next one, as is right."""
        if self._frames:
            first, last = self._frames[0], self._frames[-1]
            # A number that is missing before the first shows by its own.
            whole = first.spans or self._before is not None and first.number == (self._before + 1) % _NUMBERS
            follows = found.spans or found.number == (last.number + 1) % _NUMBERS
            if not whole or not follows or found.end - first.at > LONGEST:
                self.close(last.number)
        self._frames.append(found)
        self._gone = self._gone + gone
        self._fresh = self._fresh or fresh

    def close(self, number: int | None) -> None:
        """The run ends here; the frame before the next one has this number."""
        frames, gone, fresh = self._frames, self._gone.without(self._ended), self._fresh
        self._frames, self._gone, self._fresh, self._before = [], GivenUp(), False, number
        if len(frames) > 1 or fresh:
            self._write(frames, gone)

    def _write(self, frames: list[_Found], gone: GivenUp) -> None:
        first, last = frames[0], frames[-1]
        length = last.end - first.at - fmt.FRAME_HEADER.size
        beginning = given_up.encode(gone)
        rest = length - len(beginning)
        if rest < 0:
            return  # it would say no less than it holds
        flags = fmt.SPANS if len(frames) > 1 or first.spans else 0
        crc = _crc_of_zeros(rest, zlib.crc32(beginning))
        head = fmt.FRAME_HEADER.pack(self._sync, fmt.FrameType.GIVEN_UP, flags, 0, last.number, length, crc, 0)[:-4]
        head += zlib.crc32(head).to_bytes(4, "little") + beginning
        os.pwrite(self._fd, head, first.at)
        self.made.append((first.at, last.end))
        try:
            _punch(self._fd, first.at + len(head), rest)
        except OSError as error:
            if error.errno in _UNABLE:
                _clear(self._fd, first.at + len(head), rest)  # the frame says that it is empty
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

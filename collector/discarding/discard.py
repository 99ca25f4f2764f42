"""Takes frames out of a journal in place: their disk blocks are freed, and the file stays whole for every reader."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import msgspec

from stepscope.collector.discarding.holes import UNABLE, punch
from stepscope.collector.discarding.region import MOVED, Made, Region
from stepscope.collector.discarding.walk import sync_word, walk
from stepscope.runtime.journal import discarded_frames
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.discarded_frames import GivenUp


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
    made: list[Made]


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
        for found in walk(fd, sync_word(fd, path), start or fmt.FILE_HEADER.size):
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
            punch(descriptor, block, 2 * block)
        except OSError as error:
            if error.errno in UNABLE:
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
        sync = sync_word(fd, path)
        about = os.fstat(fd)
        last = max(wanted, default=-1)
        number = None if start > fmt.FILE_HEADER.size else -1
        region = Region(fd, sync, ended, number)
        for found in walk(fd, sync, start or fmt.FILE_HEADER.size):
            place = wanted.get(found.at)
            gone = found.gone if place is None else place.gone
            if found.at > last and (gone is None or not region.open):
                break
            if found.at in borders:
                region.close(number)
            number = found.number
            if any(found.at < border < found.end for border in borders):
                region.close(number)
            elif gone is not None or found.kind in MOVED:
                region.add(found, gone, fresh=place is not None)
            else:
                region.close(number)
        region.close(number)
        return Discarded(_freed(fd, about), region.made)
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
        sync = sync_word(fd, path)
        about = os.fstat(fd)
        for at, end in given:
            found = next(walk(fd, sync, at), None)
            if found is not None and found.end == end and found.kind == fmt.FrameType.GIVEN_UP and found.gone:
                kept = discarded_frames.needed(found.beginning)
                punch(fd, at + fmt.FRAME_HEADER.size + kept, found.length - kept)
        return _freed(fd, about)
    finally:
        os.close(fd)


def _freed(fd: int, before: os.stat_result) -> int:
    """Bytes that a file takes less on disk than before. It keeps its time, which says when it was written to last."""
    os.utime(fd, ns=(before.st_atime_ns, before.st_mtime_ns))
    return max(before.st_blocks - os.fstat(fd).st_blocks, 0) * 512

"""Takes events out of a journal in place: their disk blocks are freed, and the file stays whole for every reader."""

from __future__ import annotations

import ctypes
import errno
import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from stepscope.runtime.errors import FormatError
from stepscope.runtime.journal import format as fmt

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_UNABLE = (errno.EOPNOTSUPP, errno.ENOSYS)
_ZEROS = bytes(1 << 20)
_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
_fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


class Place(msgspec.Struct, frozen=True, gc=False):
    """Where an events frame of a journal is, and what is in it."""

    at: int
    number: int
    length: int
    """Bytes of its payload."""
    kept: int
    """Bytes of the payload before its events."""
    header: fmt.EventsHeader

    @property
    def end(self) -> int:
        """Where the next frame begins."""
        return self.at + fmt.FRAME_HEADER.size + self.length

    def frees(self, block: int) -> int:
        """Bytes that its events give back to a file system with blocks of this size: of whole blocks only."""
        first = -(-(self.at + fmt.FRAME_HEADER.size + self.kept) // block)
        return max(self.end // block - first, 0) * block


def places(path: Path, start: int = 0, end: int | None = None) -> Iterator[Place]:
    """The events frames of a journal; only headers are read.

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
        sync = fmt.decode_file_header(os.pread(fd, fmt.FILE_HEADER.size, 0))
        if sync is None:
            raise FormatError(f"{path} is not a stepscope journal, or its beginning is destroyed")
        at = start or fmt.FILE_HEADER.size
        while end is None or at < end:
            head = os.pread(fd, fmt.FRAME_HEADER.size, at)
            frame = fmt.decode_frame_header(head, 0, sync) if len(head) == fmt.FRAME_HEADER.size else None
            if frame is None:
                return
            kind, _, number, length, _ = frame
            body = at + len(head)
            if body + length > os.fstat(fd).st_size:
                return
            if kind == fmt.FrameType.EVENTS:
                decoded = fmt.decode_events_header(os.pread(fd, min(length, fmt.MAX_EVENTS_HEADER), body))
                if decoded is not None:
                    yield Place(at, number, length, decoded[1], decoded[0])
            at = body + length
    finally:
        os.close(fd)


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


def discard(path: Path, chosen: Iterable[Place]) -> int:
    """Frees the disk blocks of these frames' events; each becomes a frame that says what was in it.

    The file keeps its length and its frames their numbers, so one that is being written may be given as well.
    If the process is killed meanwhile a frame is whole, or discarded.

    Returns:
        Bytes that the file takes less on disk than before; of one that was written to meanwhile, fewer than were freed.

    Raises:
        OSError: if the file cannot be written, or its file system cannot free a part of it; that costs one frame at most.
        FormatError: if it is no journal.
    """
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        sync = fmt.decode_file_header(os.pread(fd, fmt.FILE_HEADER.size, 0))
        if sync is None:
            raise FormatError(f"{path} is not a stepscope journal, or its beginning is destroyed")
        before = os.fstat(fd).st_blocks
        for place in chosen:
            body, empty = place.at + fmt.FRAME_HEADER.size, place.length - place.kept
            crc = _crc_of_zeros(empty, zlib.crc32(os.pread(fd, place.kept, body)))
            head = fmt.FRAME_HEADER.pack(
                sync, fmt.FrameType.DISCARDED, 0, 0, place.number & 0xFFFFFFFF, place.length, crc, 0
            )[:-4]
            os.pwrite(fd, head + zlib.crc32(head).to_bytes(4, "little"), place.at)
            try:
                _punch(fd, body + place.kept, empty)
            except OSError as error:
                if error.errno in _UNABLE:
                    _clear(fd, body + place.kept, empty)  # the frame says that it is empty
                raise
        return max(before - os.fstat(fd).st_blocks, 0) * 512
    finally:
        os.close(fd)


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

"""Takes events out of a journal in place: their disk blocks are freed, and the file stays whole for every reader."""

from __future__ import annotations

import ctypes
import errno
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from stepscope.runtime.errors import FormatError
from stepscope.runtime.journal import format as fmt

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
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


def places(path: Path, start: int = 0) -> Iterator[Place]:
    """The events frames of a journal, from byte `start` on, where a frame begins; only headers are read.

    The walk ends where the file does, or is not whole.

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
        while True:
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


def discard(path: Path, chosen: Iterable[Place]) -> int:
    """Frees the disk blocks of these frames' events; each becomes a frame that says what was in it.

    The file keeps its length and its frames their numbers, so one that is being written may be given as well.
    If the process is killed meanwhile a frame is whole, or discarded.

    Returns:
        Bytes freed, about. 0 where the file system cannot free a part of a file.

    Raises:
        OSError: if the file cannot be written.
        FormatError: if it is no journal.
    """
    freed = 0
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        sync = fmt.decode_file_header(os.pread(fd, fmt.FILE_HEADER.size, 0))
        if sync is None:
            raise FormatError(f"{path} is not a stepscope journal, or its beginning is destroyed")
        for place in chosen:
            body, empty = place.at + fmt.FRAME_HEADER.size, place.length - place.kept
            crc = _crc_of_zeros(empty, zlib.crc32(os.pread(fd, place.kept, body)))
            head = fmt.FRAME_HEADER.pack(
                sync, fmt.FrameType.DISCARDED, 0, 0, place.number & 0xFFFFFFFF, place.length, crc, 0
            )[:-4]
            os.pwrite(fd, head + zlib.crc32(head).to_bytes(4, "little"), place.at)
            if not _punch(fd, body + place.kept, empty):
                return freed
            freed += empty
    finally:
        os.close(fd)
    return freed


def _crc_of_zeros(count: int, crc: int) -> int:
    while count > 0:
        crc = zlib.crc32(_ZEROS[: min(count, len(_ZEROS))], crc)
        count -= len(_ZEROS)
    return crc


def _punch(fd: int, at: int, count: int) -> bool:
    """Frees bytes of a file, which read as zeros then."""
    if count <= 0 or not _fallocate(fd, _KEEP_SIZE | _PUNCH_HOLE, at, count):
        return True
    error = ctypes.get_errno()
    if error in (errno.EOPNOTSUPP, errno.ENOSYS):
        while count > 0:  # they are gone all the same, as the frame says
            at += os.pwrite(fd, _ZEROS[: min(count, len(_ZEROS))], at)
            count -= len(_ZEROS)
        return False
    raise OSError(error, os.strerror(error))

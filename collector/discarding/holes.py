"""Frees parts of files, which read as zeros then."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import zlib

UNABLE = (errno.EOPNOTSUPP, errno.ENOSYS)
"""What a file system says that frees no parts of files."""

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_ZEROS = bytes(1 << 20)
_FEW = 1 << 15
"""Zeros whose CRC is computed as that of any bytes."""
_ALL = 0xFFFFFFFF
_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
_fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def crc_of_zeros(count: int, crc: int) -> int:
    """The CRC-32 of so many zeros behind what has this one. It takes no longer for many."""
    crc = zlib.crc32(_ZEROS[: count % _FEW], crc)
    doubled, count = 0, count // _FEW
    while count:
        if count % 2:
            crc = _ALL ^ _applied(_columns(doubled), crc ^ _ALL)
        doubled, count = doubled + 1, count // 2
    return crc


@functools.cache
def _columns(doubled: int) -> tuple[int, ...]:
    """What `_FEW` zeros, so often doubled, make of each bit of the register of a CRC: it is the sum of what becomes of its bits."""
    if not doubled:
        return tuple(_ALL ^ zlib.crc32(_ZEROS[:_FEW], _ALL ^ (1 << bit)) for bit in range(32))
    half = _columns(doubled - 1)
    return tuple(_applied(half, column) for column in half)


def _applied(columns: tuple[int, ...], register: int) -> int:
    found = 0
    for bit, column in enumerate(columns):
        if register >> bit & 1:
            found ^= column
    return found


def punch(fd: int, at: int, count: int) -> None:
    """Frees bytes of a file.

    Raises:
        OSError: if the file system cannot do that, or the disk fails.
    """
    if count > 0 and _fallocate(fd, _KEEP_SIZE | _PUNCH_HOLE, at, count):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def clear(fd: int, at: int, count: int) -> None:
    """Writes zeros instead."""
    while count > 0:
        written = os.pwrite(fd, _ZEROS[: min(count, len(_ZEROS))], at)
        at += written
        count -= written

"""Frees parts of files, which read as zeros then."""

from __future__ import annotations

import ctypes
import errno
import os
import zlib

UNABLE = (errno.EOPNOTSUPP, errno.ENOSYS)
"""What a file system says that frees no parts of files."""

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_ZEROS = bytes(1 << 20)
_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
_fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def crc_of_zeros(count: int, crc: int) -> int:
    """The CRC-32 of so many zeros behind what has this one."""
    while count > 0:
        crc = zlib.crc32(_ZEROS[: min(count, len(_ZEROS))], crc)
        count -= len(_ZEROS)
    return crc


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

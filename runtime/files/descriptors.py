"""Descriptors: those of standard input, output and error, and how many are left."""

from __future__ import annotations

import errno
import os

_STANDARD = 3


def reserve_standard_descriptors() -> None:
    """Opens /dev/null in the place of standard descriptors that are closed.

    The system gives the lowest free number to the next file that is opened. Were that 1, everything that is printed by C code or by
    programs that this one starts would land in a trace, and libuv refuses to close it. Programs that this one starts find
    it closed as before.
    """
    for descriptor in range(_STANDARD):
        try:
            os.fstat(descriptor)
        except OSError:
            try:
                opened = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            except OSError:
                return  # no /dev, or no descriptor is left
            if opened >= _STANDARD:  # another thread took the number meanwhile
                os.close(opened)


def check_free_descriptors(count: int) -> None:
    """Sees that this process may open so many more files.

    Raises:
        OSError: if not.
    """
    opened: list[int] = []
    try:
        for _ in range(count):
            opened.append(os.dup(opened[0]) if opened else os.open(os.curdir, os.O_PATH | os.O_CLOEXEC))
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
    finally:
        for descriptor in opened:
            os.close(descriptor)

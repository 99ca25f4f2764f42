"""Descriptors: reserves those of standard input, output and error, and checks that enough are free."""

from __future__ import annotations

import errno
import os

_STANDARD = 3


def reserve_standard_descriptors() -> None:
    """Opens /dev/null for standard descriptors that are closed.

    Otherwise the next file that is opened, perhaps a trace, would get the number 1. Output of C code and of child processes
    would go into it, and libuv refuses to close it. Programs that this one starts still find the descriptors closed.
    """
    for descriptor in range(_STANDARD):
        try:
            os.fstat(descriptor)
        except OSError:
            try:
                opened = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            except OSError:
                return  # no /dev, or no descriptor is left
            if opened >= _STANDARD:  # another thread opened the number meanwhile
                os.close(opened)


def check_free_descriptors(count: int) -> None:
    """Checks that this process can open `count` more files.

    Raises:
        OSError: if it cannot.
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

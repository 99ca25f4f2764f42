"""Locks on files that show whether a process lives, also to other containers.

Containers that share files have their own process numbers, so a number does not identify a process. A lock belongs to the
kernel, which releases it when the process ends. Another machine sees it only if the file system transmits locks: there, a free
file means nothing.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path


def lock(path: Path, *, alone: bool = False, write: bool = False) -> int:
    """Locks an existing file or directory. Links are not followed. With `alone` the lock is exclusive; network file systems need `write`
    for that, which opens the file for writing.

    Returns:
        A descriptor; closing it releases the lock. -1 if it cannot be locked; with `alone` that raises `OSError`.
    """
    way = os.O_RDWR if write else os.O_RDONLY
    descriptor = os.open(path, way | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_NB | (fcntl.LOCK_EX if alone else fcntl.LOCK_SH))
    except OSError:
        os.close(descriptor)
        if alone:
            raise
        return -1
    return descriptor


def is_locked_by_another(error: OSError) -> bool:
    """Whether locking failed because another process holds the lock. Any other error means that the file system has no locks,
    such as a mounted bucket. Source: flock(2), fcntl(2)."""
    return error.errno in (errno.EAGAIN, errno.EACCES)


def no_locks(error: OSError, path: Path) -> OSError:
    """Returns the error for a file that cannot be locked at all, with what to do."""
    return OSError(error.errno, f"its file system has no locks ({error.strerror}); put it on one that has", str(path))


def acquire(path: Path) -> int:
    """Locks a file until `release` or the end of this process. A forked child does not inherit the lock.

    Returns:
        A descriptor for `release`; -1 if the file cannot be locked, which is no error.
    """
    descriptor = lock(path)
    if descriptor >= 0:
        _acquired.add(descriptor)
    return descriptor


def release(descriptor: int) -> None:
    """Releases a lock of `acquire`. Idempotent."""
    if descriptor in _acquired:
        _acquired.remove(descriptor)
        os.close(descriptor)


_acquired: set[int] = set()
"""Descriptors of the locks that this process holds."""


def _forked() -> None:
    for descriptor in _acquired:
        os.close(descriptor)
    _acquired.clear()


os.register_at_fork(after_in_child=_forked)

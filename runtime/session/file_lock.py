"""Files that a process holds as long as it lives: they tell of it where its number does not.

Several containers that share files number their processes each for itself. A lock is the kernel's, and is gone with the
process. Another machine sees it only where the file system takes locks from one to the other, so there a free file says nothing.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path


def lock(path: Path, *, alone: bool = False, write: bool = False) -> int:
    """Locks a file or directory.

    Args:
        path: what is locked; it exists, and links are not followed.
        alone: nobody else may have it locked then.
        write: it is opened for writing, as network file systems want it for a lock of one's own.

    Returns:
        A descriptor, whose closing releases it; -1 if it cannot be locked and `alone` is not asked for.

    Raises:
        OSError: if it cannot be locked, as when it is in use.
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
    """Whether locking failed since another has the lock. Any other error means that the file cannot be locked at all, as on a
    network file system or a mounted bucket that has no locks. Source: flock(2), fcntl(2)."""
    return error.errno in (errno.EAGAIN, errno.EACCES)


def no_locks(error: OSError, path: Path) -> OSError:
    """The error for a file that cannot be locked at all: says what it means and what to do."""
    said = f"its file system has no locks ({error.strerror}); put it on one that has"
    return OSError(error.errno, said, str(path))


def hold(path: Path) -> int:
    """Locks a file until `release`, or until this process ends; a child does not keep it.

    Returns:
        What `release` wants.

    Raises:
        OSError: if it cannot be opened. That it cannot be locked is no error: nobody is told of this process then.
    """
    descriptor = lock(path)
    if descriptor >= 0:
        _held.add(descriptor)
    return descriptor


def release(descriptor: int) -> None:
    """Lets go of what `hold` took. Idempotent."""
    if descriptor in _held:
        _held.remove(descriptor)
        os.close(descriptor)


def is_held(path: Path) -> bool | None:
    """Whether a process holds a file; `None` if that cannot be told: it is not there, may not be written or knows no locks."""
    try:
        os.close(lock(path, alone=True, write=True))
    except BlockingIOError:
        return True
    except (OSError, ValueError):
        return None
    return False


_held: set[int] = set()
"""Descriptors by which this process holds files."""


def _forked() -> None:
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_forked)

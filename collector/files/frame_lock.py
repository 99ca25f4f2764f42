"""The lock on the frames of journals: who copies one sees none of which a part is being given up."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable, Generator
from pathlib import Path

from stepscope.runtime.session.file_lock import is_locked_by_another, no_locks

NAME = "rewriting"
_LOOK_EVERY = 0.005
"""Seconds."""


class FrameLock:
    """Held while events are given up, and while some frames are read for a copy: never while anything goes over a network.

    Each holder opens its file anew, so threads exclude each other as processes do. Of a process that ends, in whatever way,
    the system releases it.
    """

    def __init__(self, directory: Path) -> None:
        """Args: whose journals; it exists.

        Raises:
            OSError: if the lock's file cannot be made: later, on a disk that is full, it could not either.
        """
        self._path = directory / NAME
        file = self._open()
        if file is not None:
            os.close(file)

    @contextlib.contextmanager
    def held(self, patience: float, pause: Callable[[float], object] = time.sleep) -> Generator[None]:
        """It is held inside. On a file system that cannot be written nobody gives anything up, and it is not needed.

        Args:
            patience: seconds after which it is not waited for any longer.
            pause: waits so many seconds, or raises what ends the waiting.

        Raises:
            TimeoutError: if another has had it for so long.
            OSError: if its file cannot be opened or locked.
        """
        file = self._open()
        if file is None:
            yield
            return
        try:
            end = time.monotonic() + patience
            while not _taken(file, self._path):
                if time.monotonic() >= end:
                    raise TimeoutError(errno.ETIMEDOUT, "another process holds the frames of journals", str(self._path))
                pause(_LOOK_EVERY)
            yield
        finally:
            os.close(file)

    def _open(self) -> int | None:
        try:
            return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            if error.errno == errno.EROFS:
                return None
            raise


def _taken(file: int, path: Path) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if not is_locked_by_another(error):
            raise no_locks(error, path) from error
        return False
    return True

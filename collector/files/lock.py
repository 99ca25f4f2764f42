"""The lock on a collector's directory: two collectors would write into each other's files."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from stepscope.collector.errors import DirectoryInUseError
from stepscope.runtime.session.file_lock import is_locked_by_another, no_locks


class DirectoryLock:
    """Held until it is released, or the process ends in whatever way. Not by two threads at once."""

    def __init__(self, directory: Path) -> None:
        """Args: what is locked, it exists."""
        self._directory, self._path = directory, directory / "lock"
        self._file = -1

    def acquire(self) -> None:
        """Acquires the lock, unless this object has it.

        Raises:
            DirectoryInUseError: if another has it; names that.
            OSError: if the file cannot be made or locked.
        """
        if self._file >= 0:
            return
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(file, 20, 0).decode(errors="replace").strip()
            os.close(file)
            if not is_locked_by_another(error):
                raise no_locks(error, self._path) from error
            raise DirectoryInUseError(
                f"another collector (pid {holder or 'unknown'}) writes to {self._directory}; stop it, or give another directory"
            ) from error
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        self._file = file

    def release(self) -> None:
        """Lets others have it. Idempotent. The file stays: who deletes it could delete that of another."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

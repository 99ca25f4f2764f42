"""Locks on a collector's directory: two collectors would write into each other's files, two uploads likewise."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from pathlib import Path

from stepscope.collector.errors import DirectoryInUseError
from stepscope.runtime.session.file_lock import is_locked_by_another, no_locks

UPLOADS = "uploads"
"""Directory of the locks on what is uploaded to."""


class DirectoryLock:
    """Held until it is released, or the process ends in whatever way. Not by two threads at once."""

    def __init__(self, directory: Path, name: str = "lock", use: str = "another collector (pid {}) writes to") -> None:
        """Args: what is locked, it exists; the file that stands for it; who has it then, and for what."""
        self._directory, self._path, self._use = directory, directory / name, use
        self._file = -1

    def take(self) -> None:
        """Takes it, unless it is held.

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
                f"{self._use.format(holder or 'unknown')} {self._directory}; stop it, or give another directory"
            ) from error
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        self._file = file

    def release(self) -> None:
        """Lets others have it. Idempotent. The file stays: who deletes it could delete that of another."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def place_name(place: str) -> str:
    """Names a place that is uploaded to, in file names."""
    return hashlib.sha256(os.fsencode(place)).hexdigest()[:16]


class UploadLock:
    """Held by who copies a directory to a certain place: of two, each would delete what the other's manifests name."""

    def __init__(self, directory: Path, place: str) -> None:
        """Args: of a collector; where it is copied to."""
        self._directory = directory / UPLOADS
        self._lock = DirectoryLock(
            directory, f"{UPLOADS}/{place_name(place)}", f"another process (pid {{}}) uploads to {place} from"
        )

    def take(self) -> None:
        """Takes it, unless it is held; from a file system that cannot be written uploads are not told from each other.

        Raises:
            DirectoryInUseError: if another has it; names that.
            OSError: if its file cannot be made.
        """
        try:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            self._lock.take()
        except OSError as error:
            if error.errno != errno.EROFS:
                raise

    def release(self) -> None:
        """Lets others have it. Idempotent."""
        self._lock.release()

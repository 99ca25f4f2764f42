"""A private directory of one user, protected against replacement while it is read."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Generator
from pathlib import Path

from stepscope.runtime.errors import FormatError


class PrivateDirectory:
    """A directory with an open descriptor. If it lies in another such directory, it is opened for each use, and must be the same.

    So the directories of thousands of joined processes need no descriptors.

    Args:
        path: absolute path.
        owner: user id of the required owner.
        within: the directory that contains it. Opening is relative to that one's descriptor.

    Raises:
        FormatError: if it is no private directory of that user.
        OSError: if it cannot be opened.
    """

    def __init__(self, path: Path, owner: int, within: PrivateDirectory | None = None) -> None:
        self.path = path
        self.owner = owner
        self._within = within
        self._fd = -1
        self._identity: tuple[int, int] | None = None
        if not path.is_absolute():
            raise FormatError(f"{path} is not an absolute name")
        if within is not None:
            with self.opened():
                return
        self._fd = self._open(path, None)
        with contextlib.suppress(OSError):  # against a sweep meanwhile; some file systems have no locks
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def close(self) -> None:
        """Closes it. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        # An object whose constructor failed cannot be closed otherwise.
        self.close()

    @contextlib.contextmanager
    def opened(self) -> Generator[int]:
        """Provides a descriptor for the duration of a `with` block.

        Raises:
            FormatError: if another directory has this path now.
            OSError: if it cannot be opened, or was closed.
        """
        if self._within is None:
            yield self._fd
            return
        with self._within.opened() as above:
            fd = self._open(self.path.name, above)
        try:
            yield fd
        finally:
            os.close(fd)

    def _open(self, name: str | Path, above: int | None) -> int:
        refusal = f"{self.path} is not a session directory of this user"
        try:
            fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=above)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise FormatError(refusal) from error
            raise
        found = os.fstat(fd)
        if found.st_uid != self.owner or os.getuid() not in (self.owner, 0) or found.st_mode & 0o022:
            os.close(fd)
            raise FormatError(refusal)
        identity = (found.st_dev, found.st_ino)
        if self._identity not in (None, identity):
            os.close(fd)
            raise FormatError(f"{self.path} is another directory than before")
        self._identity = identity
        return fd

"""A directory of one user's alone, which nobody exchanges for another while it is read."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Generator
from pathlib import Path

from stepscope.runtime.errors import FormatError


class PrivateDirectory:
    """Held open; or, where it is in another one, opened there for each use, and seen to be the same still.

    A session may have the directories of many thousand processes, which take no descriptor so.

    Args:
        path: its name.
        owner: user to whom it must belong.
        within: the directory that it is in, whatever has taken that one's name since.

    Raises:
        FormatError: if it is no directory of that user's alone.
        OSError: if it cannot be opened.
    """

    def __init__(self, path: Path, owner: int, within: PrivateDirectory | None = None) -> None:
        self.path = path
        self.owner = owner
        self._within = within
        self._fd = -1
        self._same: tuple[int, int] | None = None
        if not path.is_absolute():
            raise FormatError(f"{path} is not an absolute name")
        if within is not None:
            with self.opened():
                return
        self._fd = self._open(path, None)
        with contextlib.suppress(OSError):  # so that no sweep removes it meanwhile; not all file systems know locks
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def close(self) -> None:
        """Closes it. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        # Whose construction failed half-way nobody can close.
        self.close()

    @contextlib.contextmanager
    def opened(self) -> Generator[int]:
        """A descriptor of it, for a block of work.

        Raises:
            FormatError: if another directory has taken its place.
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
        said = f"{self.path} is not a session directory of this user"
        try:
            fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=above)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise FormatError(said) from error
            raise
        found = os.fstat(fd)
        if found.st_uid != self.owner or os.getuid() not in (self.owner, 0) or found.st_mode & 0o022:
            os.close(fd)
            raise FormatError(said)
        same = (found.st_dev, found.st_ino)
        if self._same not in (None, same):
            os.close(fd)
            raise FormatError(f"{self.path} is another directory than before")
        self._same = same
        return fd

"""A file that grows by whole pieces and never follows a link."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from stepscope.runtime.errors import OutputError

Piece = bytes | bytearray | memoryview

_MAX_NAMES = 1000
_MAX_PIECES = 512


class AppendFile:
    """A new file, readable by this user only, that pieces are appended to. Not for two threads at once.

    A write that returns has reached the kernel. One that fails leaves the file as it was.

    Args:
        path: its name. If that is taken, `-2`, `-3`, ... is put before the suffix; links are never followed.

    Raises:
        OutputError: if it cannot be created.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        """The name that it got."""
        self.size = 0
        """Bytes written."""
        self._fd = -1
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            _make_directories(path.parent)
            for attempt in range(2, _MAX_NAMES):
                try:
                    self._fd = os.open(self.path, flags, 0o600)
                    return
                except FileExistsError:
                    self.path = path.with_name(f"{path.stem}-{attempt}{path.suffix}")
            raise FileExistsError(errno.EEXIST, f"this name and {_MAX_NAMES - 2} like it are taken")
        except OSError as error:
            raise self._error(error, "create") from error

    def write(self, pieces: list[Piece], sync: bool) -> None:
        """Appends the pieces, all or none; with `sync`, returns when the disk has them.

        Raises:
            OutputError: if the system refuses.
        """
        try:
            self._write_all(pieces)
            if sync:
                os.fsync(self._fd)
        except OSError as error:
            failure = self._error(error, "write")
            try:
                os.ftruncate(self._fd, self.size)
            except OSError as second:
                failure.add_note(f"what was written of it could not be taken back: {second}")
                self.size = os.fstat(self._fd).st_size
            raise failure from error
        self.size += sum(len(piece) for piece in pieces)

    def close(self) -> None:
        """Closes it. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write_all(self, pieces: list[Piece]) -> None:
        waiting = [memoryview(piece) for piece in pieces if len(piece)]
        while waiting:
            done = os.writev(self._fd, waiting[:_MAX_PIECES])
            while waiting and done >= len(waiting[0]):
                done -= len(waiting.pop(0))
            if done:
                waiting[0] = waiting[0][done:]

    def _error(self, error: OSError, doing: str) -> OutputError:
        return OutputError(error.errno, f"cannot {doing} the file: {error.strerror or error}", str(self.path))


def _make_directories(directory: Path) -> None:
    missing: list[Path] = []
    while not directory.exists():
        missing.append(directory)
        directory = directory.parent
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)

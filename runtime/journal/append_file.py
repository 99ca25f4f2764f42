"""A file to which complete pieces are appended. Links are not followed."""

from __future__ import annotations

import os
from pathlib import Path

from stepscope.runtime.errors import OutputError
from stepscope.runtime.files.descriptors import reserve_standard_descriptors
from stepscope.runtime.files.private_files import DeletionCheck, create

Piece = bytes | bytearray | memoryview

_FLAGS = os.O_RDWR | os.O_APPEND
_MAX_PIECES = 512


class AppendFile:
    """A file, readable by this user only, to which pieces are appended. One thread at a time may use it.

    A write that returns has reached the kernel. A write that fails does not change the file.

    Args:
        path: its path, in an existing directory. If a file of this name exists, a new one gets `-2`, `-3`, ... before the suffix.
        truncate_to: open an existing file, and cut it to so many bytes; default: create a new file.

    Raises:
        OutputError: if it cannot be created or opened.
    """

    def __init__(self, path: Path, *, truncate_to: int | None = None) -> None:
        self.path = path
        """Its actual path."""
        self.size = 0
        """Its size in bytes."""
        self._fd = -1
        self._deletion = DeletionCheck()
        try:
            reserve_standard_descriptors()
            if truncate_to is not None:
                self._fd = os.open(path, _FLAGS | os.O_CLOEXEC | os.O_NOFOLLOW)
                os.ftruncate(self._fd, truncate_to)
                self.size = truncate_to
            else:
                self._fd, self.path = create(path, _FLAGS, 0o600, _other_name)
        except OSError as error:
            raise self._error(error, "create" if truncate_to is None else "open") from error

    def write(self, pieces: list[Piece], sync: bool) -> None:
        """Appends all pieces or none. With `sync`, it waits for the disk.

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

    def write_header(self, header: bytes) -> None:
        """Overwrites the first bytes of an existing file, which may be damaged.

        Raises:
            OutputError: if the system refuses.
        """
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                os.pwrite(descriptor, header, 0)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._error(error, "write") from error

    def deleted(self, within_s: float) -> bool:
        """Whether the file was deleted. The system is asked at most once in so many seconds."""
        return self._fd >= 0 and self._deletion.deleted(self._fd, self.path, within_s)

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


def _other_name(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}-{number}{path.suffix}")

"""A file to which complete pieces are appended, and which can be continued in further files. Links are not followed."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path

from stepscope.runtime.errors import OutputError
from stepscope.runtime.files.descriptors import reserve_standard_descriptors
from stepscope.runtime.files.private_files import DeletionCheck
from stepscope.runtime.journal.format import FILE_HEADER, encode_file_header
from stepscope.runtime.journal.segments import MAX_SEGMENTS, Segment, segment_numbers, segment_path
from stepscope.runtime.session.file_lock import acquire, release

Piece = bytes | bytearray | memoryview

_FLAGS = os.O_RDWR | os.O_APPEND
_MAX_NAMES = 1000


class AppendFile:
    """A file, readable by this user only, to which pieces are appended. One thread at a time may use it.

    A new file is locked while it is open, so that other processes know that it is being written (`file_lock.lock`). If a file of this
    name exists, a new one gets `-2`, `-3`, ... before the suffix. With a segment, that one is continued, and cut at `size`, the
    size of the journal in bytes.

    A write that returns has reached the kernel. A write that fails raises `OutputError` and does not change the file.
    """

    def __init__(self, path: Path, segment: Segment | None = None, size: int = 0) -> None:
        self.path = path
        """Actual path of the first file."""
        self.size = size
        """Number of bytes of the first file, and of the frames in further ones."""
        self.segment_began_s = time.monotonic()
        """Time at which the last file was begun or opened."""
        self._fd = self._lock = -1
        self._deletion = DeletionCheck()
        try:
            reserve_standard_descriptors()
            if segment is not None:
                self._segment = segment
                self._fd = os.open(segment.path, _FLAGS | os.O_CLOEXEC | os.O_NOFOLLOW)
                os.ftruncate(self._fd, segment.offset(size))
            else:
                self._fd, self.path = _create(path)
                self._segment = Segment(str(self.path), 0, FILE_HEADER.size, FILE_HEADER.size)
                self._lock = acquire(self.path)
        except OSError as error:
            raise self._error(error, "create" if segment is None else "open") from error

    @property
    def segment(self) -> Segment:
        """The last file."""
        return self._segment

    def begin_segment(self, sync: bytes, pieces: list[Piece], fsync: bool) -> None:
        """Continues in a new file with the next free number, which begins with these frames of this sync word.

        Raises:
            OutputError: if it cannot be created or written: then this goes on in the last one.
        """
        try:
            number, path, descriptor = self._create_next()
        except OSError as error:
            raise self._error(error, "continue") from error
        lock = -1
        with contextlib.suppress(OSError):  # no descriptor is left: then others cannot know
            lock = acquire(path)  # before the lock of the last file is released: recovery looks at both
        header = encode_file_header(sync, number, self.size)
        content = b"".join([header, *pieces])
        try:
            if os.write(descriptor, content) != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if fsync:
                os.fsync(descriptor)
        except OSError as error:
            os.close(descriptor)
            release(lock)
            with contextlib.suppress(OSError):  # readers pass over a file that is not whole
                path.unlink()
            raise self._error(error, "continue") from error
        os.close(self._fd)
        self._fd, self._deletion = descriptor, DeletionCheck()
        release(self._lock)
        self._lock = lock
        self._segment = Segment(str(path), number, self.size, len(header))
        self.size += len(content) - len(header)
        self.segment_began_s = time.monotonic()

    def _create_next(self) -> tuple[int, Path, int]:
        for number in range(self._segment.number + 1, MAX_SEGMENTS + 1):
            path = segment_path(self.path, number)
            try:
                descriptor = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except FileExistsError:  # of another run
                continue
            return number, path, descriptor
        raise OSError(f"it has {MAX_SEGMENTS:,} files already")

    def write(self, pieces: list[Piece], sync: bool) -> None:
        """Appends all pieces or none. With `sync`, it waits for the disk."""
        try:
            self._write_all(pieces)
            if sync:
                os.fsync(self._fd)
        except OSError as error:
            failure = self._error(error, "write")
            try:
                os.ftruncate(self._fd, self._segment.offset(self.size))
            except OSError as second:
                failure.add_note(f"what was written of it could not be taken back: {second}")
                self.size = os.fstat(self._fd).st_size - self._segment.offset(0)
            raise failure from error
        self.size += sum(map(len, pieces))

    def write_header(self, sync: bytes) -> None:
        """Overwrites the header of the last file, which may be damaged."""
        try:
            descriptor = os.open(self._segment.path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                os.pwrite(descriptor, encode_file_header(sync, self._segment.number, self._segment.begin), 0)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._error(error, "write") from error

    def deleted(self, within_s: float) -> bool:
        """Whether the last file was deleted. The system is asked at most once in so many seconds."""
        return self._fd >= 0 and self._deletion.deleted(self._fd, self._segment.path, within_s)

    def close(self) -> None:
        """Closes it. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            release(self._lock)

    def _write_all(self, pieces: list[Piece]) -> None:
        remaining = memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        while remaining:
            remaining = remaining[os.write(self._fd, remaining) :]

    def _error(self, error: OSError, doing: str) -> OutputError:
        return OutputError(error.errno, f"cannot {doing} the file: {error.strerror or error}", str(self.path))


def _create(path: Path) -> tuple[int, Path]:
    """Creates a file with this name, or with the next free one, of which no file of a journal is there."""
    name = path
    for number in range(2, _MAX_NAMES):
        try:
            if any(segment_numbers(name)):
                raise FileExistsError
            return os.open(name, _FLAGS | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600), name
        except FileExistsError:
            name = path.with_name(f"{path.stem}-{number}{path.suffix}")
    raise FileExistsError(errno.EEXIST, f"this name and {_MAX_NAMES - 2} like it are taken")

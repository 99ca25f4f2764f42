"""A file that grows by whole pieces, plain or gzip; and names of files."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import tempfile
import zlib
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import aiofiles

from stepscope.runtime.errors import OutputError
from stepscope.runtime.export.formats import being_written
from stepscope.runtime.export.run import Run
from stepscope.runtime.files.descriptors import reserve_standard_descriptors
from stepscope.runtime.files.paths import real
from stepscope.runtime.files.private_files import (
    CHECK_INTERVAL_S,
    WINDOW_CHECK_INTERVAL_S,
    DeletionCheck,
    deleted_error,
)
from stepscope.runtime.session.file_lock import is_locked_by_another

if TYPE_CHECKING:
    from aiofiles.threadpool.binary import AsyncFileIO

SUFFIXES = (".pt.trace.json", ".trace.json", ".json")
"""Endings that stay at the end of a new name, before `.gz`, as viewers choose by them how to read a file."""

PART = ".part"
"""Ends the name of a file that is not complete yet; no viewer takes it for a trace."""


def fill(path: Path, run: Run, window: int | None) -> Path:
    """Replaces `{rank}`, `{pid}` and, if given, `{window}`; a run without a rank counts as rank 0."""
    text = str(path).replace("{rank}", str(run.rank or 0)).replace("{pid}", str(run.pid))
    return Path(text if window is None else text.replace("{window}", str(window)))


def numbered(path: Path, number: int) -> Path:
    """The name of part `number` of a file: `trace.json.gz` is followed by `trace.1.json.gz`. 0 is the file itself."""
    if number == 0:
        return path
    zipped = ".gz" if path.name.endswith(".gz") else ""
    name = path.name.removesuffix(zipped)
    suffix = next((s for s in SUFFIXES if name.endswith(s)), Path(name).suffix)
    return path.with_name(f"{name.removesuffix(suffix)}.{number}{suffix}{zipped}")


def part(path: Path) -> Path:
    """Returns the name of a file until it is complete."""
    return path.with_name(path.name + PART)


SMALL_PIECE_BYTES = 64 << 10
"""Pieces up to this may wait for the end of a group: each write lets another thread take the interpreter's lock."""
GZIP_LEVEL = 3
"""Three times as fast as zlib's default of 6 on traces, for a tenth more bytes."""


def output_error(error: OSError, path: Path, doing: str) -> OutputError:
    """The error that names the file, what was being done to it and the system's reason."""
    return OutputError(error.errno, f"cannot {doing}: {error.strerror or error}", str(path))


def make_directory(directory: Path) -> None:
    """Makes a directory and those above it, unless it is there.

    Raises:
        OSError: if that cannot be done, or something else has its name.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(directory)) from error


def check_directory(directory: Path) -> None:
    """Makes a directory and sees that files can be created there.

    Raises:
        OutputError: if not.
    """
    try:
        make_directory(directory)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise output_error(error, directory, "create files in the directory") from error


def open_for_writing(path: str | os.PathLike[str], flags: int) -> int:
    """Opens a regular file, which is emptied or created; for `open(opener=...)`. No other process has it open like this.

    Raises:
        OSError: if it is something else: a link is not followed, and a pipe is not waited for. So it is if the file will take
            the place of something else when it is complete; and if another process writes to it.
    """
    reserve_standard_descriptors()
    final = os.fsdecode(path).removesuffix(PART)
    if os.path.lexists(final):
        _check_regular(os.lstat(final).st_mode)
    file = os.open(path, flags & ~os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    try:
        _check_regular(os.fstat(file).st_mode)
        _lock(file)
        os.ftruncate(file, 0)
    except BaseException:
        os.close(file)
        raise
    return file


def _lock(file: int) -> None:
    """Keeps other processes from writing to the file too, as far as its file system has locks; a forked child does not."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if is_locked_by_another(error):
            text = "another process writes to it; give each process a name of its own, as with {pid}"
            raise OSError(errno.EBUSY, text) from error


def _check_regular(mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a directory; name a file in it")
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is no regular file; name one that is, or one that is not there")


@contextlib.contextmanager
def whole_file(path: Path) -> Generator[Path]:
    """A name to write a small file under, which becomes `path` when the block ends, and is deleted if that raises."""
    place = part(path)
    try:
        yield place
        os.replace(place, path)
    except BaseException:
        with contextlib.suppress(OSError):
            place.unlink()
        raise


def delete_files(paths: Iterable[Path]) -> None:
    """Deletes files; one that is gone already is none to delete.

    Raises:
        OutputError: if the system refused, after all were tried.
    """
    failed: OutputError | None = None
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            failed = failed or output_error(error, path, "delete the file")
    if failed is not None:
        raise failed


class OutputFile:
    """A file that can be read after every piece.

    A piece is written whole or not at all: when the disk is full, the file is cut back to what it held before, and
    later pieces may still be written. A gzip file is one complete member at any time: its end is written with every
    piece, and overwritten by the next.

    With a `tail` a plain file is like that, too: what a reader needs after the last piece is written with every piece, by
    the same system call, and overwritten by the next.

    If it is deleted meanwhile, what it held is lost: `deleted` is set, and every call raises from then on.

    The caller's thread writes, as that is the exporter's own.
    """

    def __init__(self, path: Path, file: AsyncFileIO, key: str, gzip: bool, tail: bytes) -> None:
        self.path = path
        """The current path of the file."""
        self.tail = tail
        """The end of the file, after the last piece, from the next piece on."""
        self.events = 0
        """Events in the pieces, as the caller of `write` counts them."""
        self.deleted = False
        """Whether the file was deleted before it was closed: the events in it are lost."""
        self._file = file
        self._key = key
        self._at = 0  # where the next piece goes
        self._end = b""  # what follows the last piece
        self._deflate = zlib.compressobj(GZIP_LEVEL, wbits=31) if gzip else None
        self._closed = False
        self._refusal: OutputError | None = None
        """Why what waited for the end of a group could not be written when the file was closed."""
        self._deletion = DeletionCheck()
        self.refused = 0
        """Events of a group that the system refused."""
        self._grouping = False
        self._waiting: list[bytes] = []
        """Small pieces that wait for the end of a group."""
        self._waiting_bytes = self._waiting_events = 0

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return self._at + len(self._end) + self._waiting_bytes

    @classmethod
    async def create(cls, path: Path, *, gzip: bool, tail: bytes = b"") -> OutputFile:
        """Creates or empties the file, and the directories above it.

        Args:
            path: the file.
            gzip: whether to compress.
            tail: see the class.

        Raises:
            OutputError: if that cannot be done.
        """
        key = real(path)
        if key in being_written:
            raise OutputError(errno.EBUSY, f"another exporter of this process writes to {path}; give one another name")
        being_written.add(key)
        try:
            make_directory(path.parent)
            file = await aiofiles.open(path, "w+b", buffering=0, opener=open_for_writing)
        except BaseException as error:
            being_written.discard(key)
            if isinstance(error, OSError):
                raise output_error(error, path, "create the file") from error
            raise
        return cls(path, file, key, gzip, tail)

    def write(self, piece: bytes, *, events: int = 0) -> None:
        """Appends a piece.

        Args:
            piece: any number of bytes.
            events: how many events are in it, for `events`.

        Raises:
            OutputError: if the system refused; the file is as it was.
        """
        if self._grouping and len(piece) <= SMALL_PIECE_BYTES:
            self._waiting.append(piece)
            self._waiting_bytes += len(piece)
            self._waiting_events += events
            self.events += events
            if self._waiting_bytes > SMALL_PIECE_BYTES:
                self._write_waiting()
            return
        self._write_waiting()
        self._write(piece)
        self.events += events

    def begin_group(self) -> None:
        """Small pieces may wait in memory until `end_group`."""
        self._grouping = True

    def end_group(self) -> None:
        """Writes the pieces that wait.

        Raises:
            OutputError: if the system refused them; `refused` counts their events then.
        """
        self._grouping = False
        self._write_waiting()

    def check_deleted(self) -> None:
        """Checks whether the file was deleted, at most ten times a second; that is done once a second in any case, and when it is
        closed.

        Raises:
            OutputError: if it was.
        """
        self._check_deleted(WINDOW_CHECK_INTERVAL_S)

    async def close(self) -> None:
        """Closes the file; goes on where a cancelled call was, else more calls do nothing.

        Raises:
            OutputError: if the system had not written everything after all.
        """
        if not self._closed:
            self._closed = True
            try:
                self._write_waiting()
                self._check_deleted(0.0)
            except OutputError as error:
                self._refusal = error
            being_written.discard(self._key)
        try:
            await self._file.close()
        except OSError as error:
            raise output_error(error, self.path, "close the file") from error
        if self._refusal is not None:
            raise self._refusal

    def rename(self, path: Path) -> None:
        """Gives the closed file its final name in one step, over whatever is there.

        Raises:
            OutputError: if that cannot be done.
        """
        try:
            os.replace(self.path, path)
        except OSError as error:
            raise output_error(error, path, "rename the finished file to it") from error
        self.path = path

    def _write_waiting(self) -> None:
        if not self._waiting:
            return
        piece, events = b"".join(self._waiting), self._waiting_events
        self._waiting.clear()
        self._waiting_bytes = self._waiting_events = 0
        try:
            self._write(piece)
        except BaseException:
            self.refused += events
            raise

    def _write(self, piece: bytes) -> None:
        self._check_deleted(CHECK_INTERVAL_S)
        before = self._deflate.copy() if self._deflate else None
        size = self._at + len(self._end)
        packed, end = self._pack(piece) if self._deflate else (piece, self.tail)
        try:
            written = _write_all(self._file.fileno(), packed + end, self._at)
            if written < size:  # less than what ended the file before
                os.ftruncate(self._file.fileno(), written)
        except OSError as error:
            self._deflate = before
            self._cut_back(error)
            raise output_error(error, self.path, "write") from error
        self._at += len(packed)
        self._end = end

    def _check_deleted(self, within_s: float) -> None:
        if not self._file.closed:
            self.deleted = self.deleted or self._deletion.deleted(self._file.fileno(), self.path, within_s)
        if self.deleted:
            raise deleted_error(self.path, self.events)

    def _cut_back(self, error: OSError) -> None:
        try:
            os.ftruncate(self._file.fileno(), self._at)
            _write_all(self._file.fileno(), self._end, self._at)
        except OSError as second:
            error.add_note(f"nor could the file be cut back to {self.size} bytes: {second}")

    def _pack(self, piece: bytes) -> tuple[bytes, bytes]:
        assert self._deflate is not None
        packed = self._deflate.compress(piece) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        ending = self._deflate.copy()
        return packed, ending.compress(self.tail) + ending.flush(zlib.Z_FINISH)


def _write_all(descriptor: int, data: bytes, at: int) -> int:
    """Writes a piece to its place; returns where it ends."""
    remaining = memoryview(data)
    while remaining:
        written = os.pwrite(descriptor, remaining, at)
        remaining, at = remaining[written:], at + written
    return at

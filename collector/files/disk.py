"""The directory of a collector: its lock, how much of the disk it takes, and how much more streams may write."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import stat
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path

import msgspec

from stepscope.collector.errors import DirectoryInUseError, FullError
from stepscope.runtime.journal.segments import first_names
from stepscope.runtime.session.file_lock import is_locked_by_another, no_locks

STREAMS, DOWNLOADS = "streams", "downloads"
"""Directories in that of a collector; everything in them is its own."""
FILES = (
    "audit.jsonl",
    "audit.1.jsonl",
    "refused.jsonl",
    "refused.1.jsonl",
    "clocks",
    "deleted",
    "identity",
    "lock",
)
"""Other files of a collector in its directory. Files of other programs do not count."""

SILENCE = 3600 * 10**9
"""A stream without its end is over after so many ns without a connection: its process was killed."""

Failed = Callable[[Path, OSError], object]
"""Called with each path that cannot be read, and the reason."""

PATIENCE = 15.0
"""Seconds that a write waits for room."""


def fails(_: Path, error: OSError) -> None:
    """Raises the error: the whole measurement fails with it."""
    raise error


class SegmentFile(msgspec.Struct, frozen=True):
    """A segment of a stream, as `lstat` describes it."""

    path: Path
    about: os.stat_result

    @property
    def number(self) -> int:
        """Number of the segment."""
        return int(self.path.suffix[1:] or 0)


class DiskUse(msgspec.Struct, frozen=True):
    """Bytes on disk of what a collector has written to its directory."""

    streams: int
    """Bytes of everything but files for downloads."""
    downloads: int
    segments: dict[str, list[SegmentFile]]
    """The segments of each directory in that of the streams, in their order."""

    @property
    def total(self) -> int:
        """Bytes of everything."""
        return self.streams + self.downloads


def is_silent(changed_ns: int) -> bool:
    """Whether a stream that has no connection is over, by the Unix time of its last change."""
    return time.time_ns() - changed_ns > SILENCE


def disk_use(directory: Path, failed: Failed = fails) -> DiskUse:
    """Looks at every file once; links are not followed.

    Args:
        failed: called with what cannot be read, which does not count then.

    Raises:
        OSError: if something cannot be looked at, unless `failed` passes it over.
    """
    streams = 0
    segments: dict[str, list[SegmentFile]] = {}
    place = directory / STREAMS
    for path, about in _below(place, failed):
        streams += on_disk(about)
        if path.parent.parent == place and stat.S_ISREG(about.st_mode) and first_names([path.name]) == ["journal"]:
            segments.setdefault(path.parent.name, []).append(SegmentFile(path, about))
    for found in segments.values():
        found.sort(key=lambda segment: segment.number)
    streams += sum(on_disk(about) for name in FILES for _, about in _below(directory / name, failed))
    downloads = sum(on_disk(about) for _, about in _below(directory / DOWNLOADS, failed))
    return DiskUse(streams, downloads, segments)


def on_disk(about: os.stat_result) -> int:
    """Bytes on disk of a file."""
    return about.st_blocks * 512  # whatever the file system's blocks: stat(2)


def _below(path: Path, failed: Failed) -> Iterator[tuple[Path, os.stat_result]]:
    """Yields a file or directory, and everything below it."""
    try:
        about = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return  # deleted meanwhile
    except OSError as error:
        failed(path, error)
        return
    yield path, about
    if not stat.S_ISDIR(about.st_mode):
        return
    try:
        names = os.listdir(path)
    except FileNotFoundError:
        return
    except OSError as error:
        failed(path, error)
        return
    for name in names:
        yield from _below(path / name, failed)


class DiskQuota:
    """Bounds what is written between two measurements of the disk, so that no writer, however fast, runs past a limit.

    There is no limit at first. Bytes that are written while the disk is measured may not be in the result, and are subtracted. A write for
    which there is no room waits for a measurement that begins after it came. Methods are for the loop.
    """

    def __init__(self) -> None:
        self._limit = self._slack = self._free = 0
        self._writing = 0
        """Bytes that are reserved and not written yet."""
        self._unmeasured = 0
        """Bytes that the current or last measurement may have missed."""
        self._begun = self._ended = self._measured_free = 0
        self._waiting: list[int] = []
        self._measured = asyncio.Condition()
        self.due = asyncio.Event()
        """Set when the disk is to be measured."""

    def bound(self, limit: int, slack: int) -> None:
        """Sets a limit. There is no room before the first measurement.

        Args:
            limit: bytes on disk of all that is written; 0: none.
            slack: bytes that are usually free after a measurement. When half of them are used, or half of what is free if that is
                less, another one is due.
        """
        self._limit, self._slack = limit, slack

    @property
    def used(self) -> int:
        """Bytes of the limit that were used at the last measurement, or reserved since it began."""
        return self._limit - self._free

    @property
    def wanted(self) -> int:
        """Bytes that writes wait for: those of all writes together, up to a quarter of the limit, but at least those of the
        largest one."""
        return max(*self._waiting, min(sum(self._waiting), self._limit // 4)) if self._waiting else 0

    async def reserve(self, size: int) -> None:
        """Reserves so many bytes, which are written from now on until `wrote` is called. Raises `FullError` if there is
        none, and none can be made."""
        if not self._limit:
            return
        if self._free < size:
            self._waiting.append(size)
            try:
                await self._wait_measured(size)
            finally:
                self._waiting.remove(size)
        if self._free < size:
            raise FullError(
                f"the collector's limit of {self._limit} bytes on disk is met, and nothing that is left can be evicted"
            )
        self._free -= size
        self._unmeasured += size
        self._writing += size
        if self._free < min(self._slack, self._measured_free) // 2:
            self.due.set()

    def wrote(self, size: int) -> None:
        """Reports so many reserved bytes as written, or as given up."""
        if self._limit:
            self._writing -= size

    @contextlib.asynccontextmanager
    async def writing(self, size: int) -> AsyncGenerator[None]:
        """Reserves so many bytes, which are written in the block. Raises `FullError` as `reserve`."""
        await self.reserve(size)
        try:
            yield
        finally:
            self.wrote(size)

    def begin_measurement(self) -> None:
        """Begins a measurement of the disk."""
        self.due.clear()
        self._begun += 1
        self._unmeasured = self._writing

    async def end_measurement(self, used: int) -> None:
        """Ends a measurement: so many bytes are used."""
        self._ended = self._begun
        self._free = self._measured_free = self._limit - used - self._unmeasured
        async with self._measured:
            self._measured.notify_all()

    async def wait_measured(self) -> None:
        """Returns when a measurement that began from now on has ended, or none does for long; at once if there is no limit."""
        if self._limit:
            await self._wait_measured(sys.maxsize)

    async def _wait_measured(self, size: int) -> None:
        """Does the same, and returns earlier if so many bytes are free."""
        awaited = self._begun + 1
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE), self._measured:
                # Others may have taken the bytes that the last measurement found free.
                while self._free < size and (self._ended < awaited or self._measured_free >= size):
                    self.due.set()
                    await self._measured.wait()


class DirectoryLock:
    """A lock that lasts until it is released, or the process ends. Two threads may not use one object at once."""

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

    def is_lost(self) -> bool:
        """Whether the locked file is no longer in the directory: it was removed, and another collector may have made it anew."""
        if self._file < 0:
            return False
        try:
            return not os.path.samestat(os.lstat(self._path), os.fstat(self._file))
        except (FileNotFoundError, NotADirectoryError):
            return True

    def release(self) -> None:
        """Releases the lock. Idempotent. The file stays: to delete it could delete that of another process."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

"""How much of the disk a collector's files take, and which segments its streams have."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from stepscope.runtime.journal.segments import first_names

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


def fails(_: Path, error: OSError) -> None:
    """The whole fails with it."""
    raise error


class SegmentFile(msgspec.Struct, frozen=True):
    """A segment of a stream, as `lstat` describes it."""

    path: Path
    about: os.stat_result

    @property
    def number(self) -> int:
        """Of the segment."""
        return int(self.path.suffix[1:] or 0)


class DiskUse(msgspec.Struct, frozen=True):
    """Bytes on disk of what a collector has written to its directory."""

    streams: int
    """Of all but what is made for downloads."""
    downloads: int
    segments: dict[str, list[SegmentFile]]
    """The segments of each directory in that of the streams, in their order."""

    @property
    def total(self) -> int:
        """Of everything."""
        return self.streams + self.downloads


def is_silent(changed_ns: int) -> bool:
    """Whether a stream that has no connection is over, by the Unix time of its last change."""
    return time.time_ns() - changed_ns > SILENCE


def disk_use(directory: Path, failed: Failed = fails) -> DiskUse:
    """Looks at every file once; links are not followed.

    Args:
        failed: is told what cannot be looked at; it does not count then.

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
    """A file or directory, and everything below it."""
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

"""How much of the disk a collector's files take."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec

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
    "rewriting",
    "uploads",
)
"""What is there besides; files of others do not count."""


Failed = Callable[[Path, OSError], object]
"""Is told of what cannot be looked at, and why."""


def fails(_: Path, error: OSError) -> None:
    """The whole fails with it."""
    raise error


class DiskUse(msgspec.Struct, frozen=True):
    """Bytes on disk of what a collector has written to its directory."""

    streams: int
    """Of all but what is made for downloads."""
    downloads: int

    @property
    def total(self) -> int:
        """Of everything."""
        return self.streams + self.downloads


def disk_use(directory: Path, failed: Failed = fails) -> DiskUse:
    """How much there is; links are not followed.

    Args:
        directory: of a collector.
        failed: is told what cannot be looked at; it does not count then.

    Raises:
        OSError: if something cannot be looked at, unless `failed` passes it over.
    """
    downloads = _below(directory / DOWNLOADS, failed)
    return DiskUse(sum(_below(directory / name, failed) for name in (STREAMS, *FILES)), downloads)


def on_disk(about: os.stat_result) -> int:
    """Bytes on disk of a file."""
    return about.st_blocks * 512  # whatever the file system's blocks: stat(2)


def _below(path: Path | os.DirEntry[str], failed: Failed) -> int:
    total = 0
    try:
        about = os.lstat(path)
        total = on_disk(about)
        if stat.S_ISDIR(about.st_mode):
            with os.scandir(path) as entries:
                for entry in entries:
                    total += _below(entry, failed)
    except (FileNotFoundError, NotADirectoryError):
        return 0  # it has gone meanwhile
    except OSError as error:
        failed(Path(path), error)
    return total

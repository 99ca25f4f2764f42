"""How much of the disk a collector's files take."""

from __future__ import annotations

import os
import stat
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


class DiskUse(msgspec.Struct, frozen=True):
    """Bytes on disk of what a collector has written to its directory."""

    streams: int
    """Of all but what is made for downloads."""
    downloads: int

    @property
    def total(self) -> int:
        """Of everything."""
        return self.streams + self.downloads


def disk_use(directory: Path) -> DiskUse:
    """How much there is; links are not followed.

    Raises:
        OSError: if a directory cannot be read.
    """
    downloads = _below(directory / DOWNLOADS)
    return DiskUse(sum(_below(directory / name) for name in (STREAMS, *FILES)), downloads)


def on_disk(about: os.stat_result) -> int:
    """Bytes on disk of a file."""
    return about.st_blocks * 512  # whatever the file system's blocks: stat(2)


def _below(path: Path | os.DirEntry[str]) -> int:
    try:
        about = os.lstat(path)
        total = on_disk(about)
        if stat.S_ISDIR(about.st_mode):
            with os.scandir(path) as entries:
                total += sum(map(_below, entries))
        return total
    except (FileNotFoundError, NotADirectoryError):
        return 0  # it has gone meanwhile

"""How much of the disk a collector's files take."""

from __future__ import annotations

import os
import stat
from pathlib import Path

TREES = ("streams", "downloads")
"""Directories in that of a collector; everything in them is its own."""
FILES = ("audit.jsonl", "audit.1.jsonl", "refused.jsonl", "refused.1.jsonl", "clocks", "identity", "lock")
"""Files there that are its own; those of others do not count."""


def disk_use(directory: Path) -> int:
    """Bytes on disk of everything that a collector has written to its directory; links are not followed.

    Raises:
        OSError: if a directory cannot be read.
    """
    return sum(map(_below, (directory / name for name in (*TREES, *FILES))))


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

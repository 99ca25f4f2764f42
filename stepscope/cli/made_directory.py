"""The directory that an output is written to, where it is not there yet."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from stepscope.cli import opening


@contextmanager
def made_directory(directory: Path) -> Generator[None]:
    """Says on standard error that a block of work made a directory, which a slip in a path makes as well."""
    was_there = directory.exists()
    try:
        yield
    finally:
        if not was_there and directory.exists():
            print(f"made the directory {opening.shown(directory)}", file=sys.stderr)

"""The directory that an output is written to, where it is not there yet."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from stepscope.cli.common import opening
from stepscope.cli.common.messages import message


@contextmanager
def made_directory(directory: Path) -> Generator[None]:
    """Says on standard error that a block of work made a directory, which a slip in a path makes as well."""
    was_there = directory.exists()
    try:
        yield
    finally:
        if not was_there and directory.exists():
            message(f"made the directory {opening.shown(directory)}")

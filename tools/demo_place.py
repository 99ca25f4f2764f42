"""Where a demonstration puts what it makes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


class Place:
    """A directory, and whether it stays."""

    def __init__(self, path: Path, *, stays: bool) -> None:
        """Args: the directory; whether it was asked for, and so stays in any case."""
        self.path = path
        self.stays = stays
        self.succeeded = False
        """To be set when all went well: what was not asked for goes then."""


@contextmanager
def place_for(directory: Path | None, name: str) -> Generator[Place]:
    """A directory for a block of work. One that was not asked for is removed if that succeeds, else it is said where it is.

    Args:
        directory: the one that was asked for; it is made if need be. `None`: a new one among temporary files.
        name: how the name of a new one begins.
    """
    place = Place(directory or Path(tempfile.mkdtemp(prefix=f"{name}-")), stays=directory is not None)
    place.path.mkdir(parents=True, exist_ok=True)
    try:
        yield place
    finally:
        if place.succeeded and not place.stays:
            shutil.rmtree(place.path)
            print("what it made is removed; --dir DIR leaves it there, to be looked at", flush=True)
        else:
            print(f"what it made is in {place.path}", flush=True)

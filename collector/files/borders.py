"""Where copies of journals go on: at these bytes a frame begins, whatever is given up around them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

UPLOADS = "uploads"
_DIGITS = 16
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW


class Borders:
    """What all uploads from a directory have noted, of whatever process, and the downloads of this one; to be read with the
    frames held."""

    def __init__(self, directory: Path) -> None:
        """Args: of a collector."""
        self._directory = directory / UPLOADS
        self._reading: dict[object, tuple[str, int]] = {}
        """Who reads for a download, of which stream, and where the next piece begins."""

    def of(self, stream: str) -> frozenset[int]:
        """Bytes of a stream's journal.

        Raises:
            OSError: if what was noted cannot be read.
        """
        noted = {at for place in self._places() for at in _read(place / stream)}
        return frozenset(noted.union(at for read, at in list(self._reading.values()) if read == stream))

    def pass_on(self, reader: object, stream: str, at: int) -> None:
        """From now on a download goes on here, and nowhere else; to be called with the frames held."""
        self._reading[reader] = stream, at

    def passed(self, reader: object) -> None:
        """A download is over, or was given up. Idempotent."""
        self._reading.pop(reader, None)

    def forget(self, stream: str) -> None:
        """The stream is no more.

        Raises:
            OSError: if what was noted cannot be deleted.
        """
        for place in self._places():
            (place / stream).unlink(missing_ok=True)

    def _places(self) -> Iterator[Path]:
        try:
            with os.scandir(self._directory) as entries:
                found = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return
        yield from found


def _read(path: Path) -> tuple[int, ...]:
    try:
        file = os.open(path, os.O_RDONLY | _FLAGS)
    except FileNotFoundError:
        return ()
    try:
        data = os.pread(file, 3 * _DIGITS, 0)
    finally:
        os.close(file)
    return tuple(int(data[at : at + _DIGITS]) for at in range(0, len(data), _DIGITS)) if data.isdigit() else ()

"""Where copies of journals go on: at these bytes a frame begins, whatever is given up around them."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from stepscope.collector.files.lock import UPLOADS, place_name

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


class BorderNotes:
    """Notes of one upload; to be changed with the frames held. On a file system that cannot be written none are needed."""

    def __init__(self, directory: Path, place: str) -> None:
        """Args: of a collector; where it is copied to."""
        self._directory = directory / UPLOADS / f"{place_name(place)}.borders"

    def read(self, stream: str) -> tuple[int, ...]:
        """What is noted; empty if nothing is.

        Raises:
            OSError: if it cannot be read.
        """
        return _read(self._directory / stream)

    def put(self, stream: str, *borders: int) -> None:
        """From now on these, three at most, and no others.

        Raises:
            OSError: if it cannot be noted.
        """
        at = (*borders, *borders[-1:] * 3)[:3]
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = os.open(self._directory / stream, os.O_WRONLY | os.O_CREAT | _FLAGS, 0o600)
        except OSError as error:
            if error.errno == errno.EROFS:
                return
            raise
        try:
            # All at once, and over what was there: who is killed leaves the one or the other.
            os.pwrite(file, b"".join(b"%0*d" % (_DIGITS, one) for one in at), 0)
        finally:
            os.close(file)

    def drop(self, stream: str) -> None:
        """All of it was copied.

        Raises:
            OSError: if the note cannot be deleted.
        """
        with contextlib.suppress(FileNotFoundError):
            (self._directory / stream).unlink()


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

"""Files that are written for long: whether their name still leads to them, and what to do if they were deleted."""

from __future__ import annotations

import errno
import logging
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger("stepscope")

LOOK_EVERY = 1.0
"""Seconds between two looks, between windows."""

_MAX_NAMES = 1000
_CHUNK = 1 << 20


class Presence:
    """Watches one open file. A deleted one is written to without an error, and is gone when it is closed.

    One that was moved is left where it is: whoever moved it has it.
    """

    def __init__(self) -> None:
        self._looked = time.monotonic()

    def deleted(self, file: int, path: Path, *, now: bool = False) -> bool:
        """Whether no name leads to the file any more; asks the system at most every `LOOK_EVERY` seconds.

        Args:
            file: descriptor.
            path: its name.
            now: ask in any case.
        """
        at = time.monotonic()
        if not now and at - self._looked < LOOK_EVERY:
            return False
        gone = os.fstat(file).st_nlink == 0 and not _leads_to(path, file)
        if not gone:  # of one that is gone, each write is to hear until it was rescued
            self._looked = at
        return gone


def _leads_to(path: Path, file: int) -> bool:
    """Whether a name leads to an open file: not every file system counts links."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(file))
    except OSError:
        return False


def create(path: Path, flags: int, mode: int, other_name: Callable[[Path, int], Path]) -> tuple[int, Path]:
    """A new file under this name, or the next one that is free; links are not followed.

    Args:
        path: the name.
        flags: for `os.open`.
        mode: rights, without those of the umask.
        other_name: makes name number 2, 3, ... of a name.

    Raises:
        OSError: if it cannot be created.
    """
    name = path
    for number in range(2, _MAX_NAMES):
        try:
            return os.open(name, flags | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode), name
        except FileExistsError:
            name = other_name(path, number)
    raise FileExistsError(errno.EEXIST, f"this name and {_MAX_NAMES - 2} like it are taken")


def refuse_link(directory: Path) -> None:
    """Sees that a directory's name, which is ours, is no symbolic link: what is written there would land elsewhere.

    Raises:
        OSError: if it is one.
    """
    if directory.is_symlink():
        said = f"{directory} is a symbolic link, and is not followed; remove it, or put a directory in its place"
        raise OSError(errno.ELOOP, said)


def replace_private(path: Path, data: bytes) -> None:
    """Writes a small file that only this user can read, in one step, in place of whatever has its name.

    Raises:
        OSError: if that is not possible.
    """
    made = path.with_name(f".{path.name}.{os.getpid()}")
    made.unlink(missing_ok=True)
    file, _ = create(made, os.O_WRONLY, 0o600, lambda path, number: path.with_name(f"{path.name}.{number}"))
    try:
        with os.fdopen(file, "wb") as stream:
            stream.write(data)
        made.replace(path)
    finally:
        made.unlink(missing_ok=True)


def rescue(file: int, path: Path, flags: int, other_name: Callable[[Path, int], Path]) -> tuple[int, Path]:
    """Copies a deleted file that is still open to a new one, under its old name or the next that is free.

    Args:
        file: descriptor that can be read.
        path: the old name; directories that are missing are made again, for this user only.
        flags: for `os.open` of the new one.
        other_name: makes name number 2, 3, ... of a name.

    Returns:
        The new descriptor and its name; the old one is still open.

    Raises:
        OSError: if that is not possible; nothing is left behind then.
    """
    make_directories(path.parent)
    about = os.fstat(file)
    new, name = create(path, flags, stat.S_IMODE(about.st_mode), other_name)
    try:
        at = 0
        while data := os.pread(file, _CHUNK, at):
            at += len(data)
            while data:
                data = data[os.write(new, data) :]
    except OSError:
        os.close(new)
        name.unlink()
        raise
    log.warning("%s was deleted while it was written; its content was saved to %s", path, name)
    return new, name


def make_directories(directory: Path) -> None:
    """Makes a directory and those above it that are missing, for this user only.

    Raises:
        OSError: if that cannot be done.
    """
    missing: list[Path] = []
    while not directory.exists():
        missing.append(directory)
        directory = directory.parent
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)

"""Private files and directories: created without following links, replaced atomically, and checked for deletion."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

from stepscope.runtime.errors import OutputError

CHECK_INTERVAL_S = 1.0
"""Between two checks of one file whether it was deleted."""
WINDOW_CHECK_INTERVAL_S = 0.1
"""The same at the ends of windows."""


class DeletionCheck:
    """Detects that an open file was deleted. Writes to it still succeed, but its content is lost when it is closed.

    A file that was moved does not count as deleted.
    """

    def __init__(self) -> None:
        self._checked = time.monotonic()

    def deleted(self, file: int, path: Path, within_s: float = CHECK_INTERVAL_S) -> bool:
        """Whether no name leads to an open file any more. For `within_s` seconds after a check, it is skipped, and returns false."""
        at = time.monotonic()
        if at - self._checked < within_s:
            return False
        self._checked = at
        about = os.fstat(file)
        return about.st_nlink == 0 and not _is_named(path, about)


def is_missing(path: Path) -> bool:
    """Whether no file has this name; `False` if that is unknown, as after a change of the user."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def deleted_error(path: Path, events: int) -> OutputError:
    """Returns the error for a file that was deleted while it was written, with so many events."""
    noun = "event" if events == 1 else "events"
    return OutputError(errno.ENOENT, f"deleted while it was written: {events:,} {noun} are lost", str(path))


def _is_named(path: Path, about: os.stat_result) -> bool:
    """Whether this name refers to the file. Not every file system counts links."""
    try:
        return os.path.samestat(path.lstat(), about)
    except OSError:
        return False


def refuse_link(directory: Path) -> None:
    """Checks that a directory of stepscope is not a symbolic link, so that files are not written to another place.

    Raises:
        OSError: if it is one.
    """
    if directory.is_symlink():
        text = f"{directory} is a symbolic link, and is not followed; remove it, or put a directory in its place"
        raise OSError(errno.ELOOP, text)


def replace_private(path: Path, data: bytes) -> None:
    """Writes or replaces a small file, readable for this user only, in one step.

    Several threads and processes may write the same file: it gets the content of one of them. No temporary file remains.
    """
    temporary = temporary_name(path)
    try:
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(file, "wb") as stream:
            stream.write(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def temporary_name(path: Path) -> Path:
    """Returns a hidden name in the same directory for a file that is being written. Each call returns a different one."""
    return path.with_name(f".{path.name}.{os.urandom(8).hex()}")


def make_directories(directory: Path) -> None:
    """Makes a directory and those above it that are missing, for this user only."""
    missing: list[Path] = []
    while not directory.exists():
        missing.append(directory)
        directory = directory.parent
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)

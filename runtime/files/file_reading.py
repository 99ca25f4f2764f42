"""Reads files that other processes may change at any time, without waiting and within a limit of bytes."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from pathlib import Path

import msgspec

from stepscope.runtime.files.private_files import temporary_name


class Reading(msgspec.Struct, frozen=True):
    """Result of reading a file."""

    content: bytes | None
    """Its content; `None` if it cannot be read."""
    problem: str = ""
    """Why it cannot be read."""
    missing: bool = False
    """Whether it does not exist."""
    owner: int = -1
    """User id of its owner."""

    @property
    def digest(self) -> str:
        """Digest of the content; empty without one."""
        return "" if self.content is None else hashlib.sha256(self.content).hexdigest()


def read_bounded(path: Path, limit: int, *, follow: bool = True) -> Reading:
    """Reads a regular file of `limit` bytes at most. Never waits for a pipe or a device. Configurations are often mounted by a link, which is
    followed by default.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    try:
        file = os.open(path, flags if follow else flags | os.O_NOFOLLOW)
    except FileNotFoundError:
        problem = "a link to a file that does not exist" if path.is_symlink() else "there is no such file"
        return Reading(None, problem, missing=True)
    except NotADirectoryError:
        return Reading(None, "there is no such file: a part of its path is no directory", missing=True)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            return Reading(None, "it is no regular file")
        if error.errno == errno.ELOOP and not follow:
            return Reading(None, "it is a symbolic link, and was not followed")
        return Reading(None, f"it cannot be read: {error.strerror}")
    try:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode):
            kind = "a directory" if stat.S_ISDIR(about.st_mode) else "no regular file"
            return Reading(None, f"it is {kind}")
        content = _read(file, limit + 1) if about.st_size <= limit else b""
        if about.st_size > limit or len(content) > limit:
            size = max(about.st_size, len(content))
            return Reading(None, f"it is too large: {size:,} bytes, the limit is {limit:,}")
        return Reading(content, owner=about.st_uid)
    except OSError as error:
        return Reading(None, f"it cannot be read: {error.strerror}")
    finally:
        os.close(file)


def _read(file: int, most: int) -> bytes:
    parts: list[bytes] = []
    while most > 0 and (part := os.read(file, most)):
        parts.append(part)
        most -= len(part)
    return b"".join(parts)


def create_once(path: Path, content: bytes, mode: int = 0o644) -> bool:
    """Creates a file with all its content in one step, if it does not exist.

    Returns:
        Whether it was created; false if it exists already.
    """
    made = temporary_name(path)
    try:
        file = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        with os.fdopen(file, "wb") as stream:
            stream.write(content)
        try:
            os.link(made, path)
            return True
        except FileExistsError:
            return False
        except OSError as error:  # a file system without links: not in one step, but no file is replaced
            if error.errno == errno.ENOSPC:
                raise
            return _create_in_place(path, content, mode)
    finally:
        made.unlink(missing_ok=True)


def _create_in_place(path: Path, content: bytes, mode: int) -> bool:
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    except FileExistsError:
        return False
    with os.fdopen(file, "wb") as stream:
        stream.write(content)
    return True

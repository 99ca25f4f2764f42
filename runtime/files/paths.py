"""Paths that depend on the process's surroundings: each is looked up when it is needed, and the lookup does not raise."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path, PurePath


def absolute(path: str | os.PathLike[str]) -> Path:
    """The path from the root. Where the working directory was deleted, a relative path stays relative: who opens it gets
    the system's error."""
    try:
        return Path(path).absolute()
    except OSError:
        return Path(path)


def real(path: str | os.PathLike[str]) -> str:
    """The path without links; as it is where the working directory was deleted and the path is relative."""
    try:
        return os.path.realpath(path)
    except OSError:
        return os.fspath(path)


def temporary_directory() -> Path | None:
    """The system's directory for temporary files; `None` if none can be written, as in a container whose root file system
    is read-only."""
    try:
        return Path(tempfile.gettempdir())
    except OSError:
        return None


def user_directory(place: Path, name: str) -> Path | None:
    """A directory for this user alone in a place that all users share; `None` if it cannot be made, or is not private.

    Args:
        place: such as /tmp.
        name: of the directory; the user's number is added.
    """
    path = place / f"{name}-{os.geteuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        about = path.lstat()
    except OSError:
        return None
    private = stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o022
    return path if private else None


def can_create_in(directory: Path) -> bool:
    """Whether this process may create files in a directory, or may make the directory: as far as modes and mounts tell."""
    path = absolute(directory)
    found = next((place for place in (path, *path.parents) if os.path.lexists(place)), None)
    return path.is_absolute() and found is not None and os.access(found, os.W_OK | os.X_OK)


def readable(text: str | os.PathLike[str]) -> str:
    """Text that UTF-8 can hold: bytes of a path that are not UTF-8 become `\\udcXX`."""
    return os.fspath(text).encode("utf-8", "backslashreplace").decode()


def shown_file(file: str) -> str:
    """A file as people read it: relative to the working directory if it lies below that, else the last two parts of its path."""
    path = PurePath(file)
    try:
        here = Path.cwd()
        if path.is_relative_to(here) and len(here.parts) > 1:  # everything lies below the root
            return str(path.relative_to(here))
    except OSError:  # the working directory was deleted
        pass
    return os.path.join(*path.parts[-2:]) if path.parts else file

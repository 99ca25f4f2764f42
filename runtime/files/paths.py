"""Paths that depend on the working directory, the user or the system. These functions do not raise."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path, PurePath


def absolute(path: str | os.PathLike[str]) -> Path:
    """Returns the absolute path. If the working directory was deleted, a relative path stays relative, and opening it fails."""
    try:
        return Path(path).absolute()
    except OSError:
        return Path(path)


def real(path: str | os.PathLike[str]) -> str:
    """Returns the path without links; unchanged if it is relative and the working directory was deleted."""
    try:
        return os.path.realpath(path)
    except OSError:
        return os.fspath(path)


def temporary_directory() -> Path | None:
    """Returns the system's directory for temporary files; `None` if none is writable, as in a read-only container."""
    try:
        return Path(tempfile.gettempdir())
    except OSError:
        return None


def user_directory(place: Path, name: str) -> Path | None:
    """Makes a private directory of this user, `<name>-<user id>`, in a shared place such as /tmp; `None` if it cannot be made, or is not
    private.
    """
    path = place / f"{name}-{os.geteuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        about = path.lstat()
    except OSError:
        return None
    private = stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o022
    return path if private else None


def writable_or_other(place: Path, name: str) -> Path:
    """A place, or a directory of this user for temporary files where nothing can be created in it; the place if there is none."""
    if can_create_in(place):
        return place
    temporary = temporary_directory()
    return (temporary and user_directory(temporary, name)) or place


def can_create_in(directory: Path) -> bool:
    """Whether this process may create files in a directory, or make the directory, according to modes and mounts."""
    path = absolute(directory)
    found = next((place for place in (path, *path.parents) if os.path.lexists(place)), None)
    return path.is_absolute() and found is not None and os.access(found, os.W_OK | os.X_OK)


def readable(text: str | os.PathLike[str]) -> str:
    """Returns text that UTF-8 can encode: bytes of a path that are not UTF-8 become `\\udcXX`."""
    return os.fspath(text).encode("utf-8", "backslashreplace").decode()


def shown_file(file: str) -> str:
    """Returns a short path for people: relative to the working directory if the file is below it, else its last two parts."""
    path = PurePath(file)
    try:
        here = Path.cwd()
        if path.is_relative_to(here) and len(here.parts) > 1:  # not if that is the root
            return str(path.relative_to(here))
    except OSError:  # the working directory was deleted
        pass
    return os.path.join(*path.parts[-2:]) if path.parts else file

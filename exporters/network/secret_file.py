"""A file that holds a secret: a token, a password, credentials."""

from __future__ import annotations

import errno
import logging
import os
import stat
from pathlib import Path
from typing import BinaryIO

log = logging.getLogger("stepscope")

_reported: set[tuple[Path, int]] = set()
"""Files and permissions that were reported as too open: files are read again for each connection."""

_ADVICE = {
    errno.ENOENT: "; write it there, or name the file that has it",
    errno.EACCES: "; let the user read it whom this runs as",
    errno.EISDIR: "; name the file in it",
}


def read_secret(path: Path) -> str:
    """The text of the file, without white space around it.

    If others than its owner can read or change the file, that is a warning, once; secrets that are mounted often are so.

    Raises:
        OSError: if it cannot be read; names it, and says what to do.
        ValueError: if it holds nothing.
    """
    with open_named(path, "the secret") as file:
        about = os.fstat(file.fileno())
        found = file.read().decode(errors="replace").strip()
    mode = stat.S_IMODE(about.st_mode)
    if stat.S_ISREG(about.st_mode) and mode & 0o066 and (path, mode) not in _reported:
        _reported.add((path, mode))
        log.warning(
            "permissions %04o of %s are too open: others than its owner can %s this secret; chmod 600 %s",
            mode,
            path,
            "change" if mode & 0o022 else "read",
            path,
        )
    if not found:
        raise ValueError(f"{path} is empty: it should hold the secret")
    return found


def open_named(path: Path, what: str) -> BinaryIO:
    """Opens a file that a setting names.

    Args:
        path: of the file.
        what: it should hold, for the message.

    Raises:
        OSError: if it cannot be read; names it, and says what to do.
    """
    try:
        return path.open("rb")
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "")
        raise OSError(
            error.errno, f"{path}, which should hold {what}, cannot be read: {error.strerror}{advice}"
        ) from error

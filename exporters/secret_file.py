"""A file that holds a secret: a token, a password, credentials."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

log = logging.getLogger("stepscope")

_told: set[tuple[Path, int]] = set()
"""Files and permissions of which it was said that they are too open: files are read again for each connection."""


def read_secret(path: Path) -> str:
    """What it holds, without white space around it.

    If others than its owner can read or change the file, that is a warning, once; secrets that are mounted often are so.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it holds nothing.
    """
    with path.open("rb") as file:
        about = os.fstat(file.fileno())
        found = file.read().decode(errors="replace").strip()
    mode = stat.S_IMODE(about.st_mode)
    if stat.S_ISREG(about.st_mode) and mode & 0o066 and (path, mode) not in _told:
        _told.add((path, mode))
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

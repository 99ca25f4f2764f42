"""Secrets, such as tokens and passwords: read from files, and left out of logs."""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

log = logging.getLogger("stepscope")

_reported: set[tuple[Path, int]] = set()
"""Files and permissions that were reported as too open: files are read again for each connection."""

_ADVICE = {
    errno.ENOENT: "; write it there, or name the file that has it",
    errno.EACCES: "; let the user read it whom this runs as",
    errno.EISDIR: "; name the file in it",
}

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter


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
    """Opens a file that a setting names. Raises `OSError` if it cannot be read; names it, and says what to do."""
    try:
        return path.open("rb")
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "")
        raise OSError(
            error.errno, f"{path}, which should hold {what}, cannot be read: {error.strerror}{advice}"
        ) from error


class QuietLogger(_Adapter):
    """A logger that has no DEBUG, however the program's loggers are set; what is graver goes on to the logger of this name.

    At DEBUG the library logs every header of a handshake, the token in `Authorization` among them, and the beginning of
    every message. A program that sets the root logger to DEBUG asks for neither.
    """

    def __init__(self, name: str) -> None:
        """Args: the name of the logger behind it."""
        super().__init__(logging.getLogger(name), {})

    def isEnabledFor(self, level: int) -> bool:
        """Whether something of this level is logged."""
        return level > logging.DEBUG and super().isEnabledFor(level)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Leaves what is logged as it is, with what the library adds."""
        return msg, kwargs

"""The names of the clocks that a collector had: one for each start. Streams may claim others, and are not believed."""

from __future__ import annotations

import os
import re
from pathlib import Path

NAME = "clocks"
"""Of the file in the collector's directory: a name a line, the newest last."""
_MOST_BYTES = 4 << 20
"""More are not read: 120,000 starts."""
_CLOCK = re.compile(rb"[0-9a-f]{32}")


def add(directory: Path, name: str) -> None:
    """Notes a clock.

    Raises:
        OSError: if the file cannot be written, or is a link.
    """
    file = os.open(directory / NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(file, "ab") as names:
        names.write(f"{name}\n".encode())


def read(directory: Path) -> frozenset[str] | None:
    """The clocks of a collector's directory; `None` if it says nothing of them, as one of another origin.

    Raises:
        OSError: if the file is there and cannot be read.
    """
    try:
        file = os.open(directory / NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    with os.fdopen(file, "rb") as names:
        names.seek(max(os.fstat(file).st_size - _MOST_BYTES, 0))
        return frozenset(line.decode() for line in names.read(_MOST_BYTES).split() if _CLOCK.fullmatch(line))

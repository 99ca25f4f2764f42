"""The mark beside a journal that says that another stream supersedes it."""

from __future__ import annotations

import os
import re
from pathlib import Path

SUPERSEDED = "superseded"
"""File in the directory of a stream of which another one has everything: the other's id."""

_STREAM = re.compile("[0-9a-f]{32}")


def mark_of(path: Path) -> str:
    """What the collector's mark beside a journal says, empty without one; links are not followed."""
    try:
        file = os.open(path.with_name(SUPERSEDED), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        said = os.read(file, 33).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(file)
    return said if _STREAM.fullmatch(said) else ""

"""Session directories: what is in one, whose it is, and which may be deleted."""

from __future__ import annotations

import json
import logging
import os
import stat
from pathlib import Path
from typing import Any

from stepscope.runtime.flight.segment import PREFIX as KEPT
from stepscope.runtime.spool import FILES as SPOOL_FILES

log = logging.getLogger("stepscope")

PREFIX = "stepscope-"
IDENTITY = "process.json"
KEPT_LEFTOVERS = 8
"""Sessions of killed processes that are kept for `stepscope recover`; older ones are removed."""

_FILES = ("strings", "tracks", "stacks", IDENTITY, *SPOOL_FILES)
_MAX_IDENTITY = 4096


def is_session_file(name: str) -> bool:
    """Whether a file of this name may be one that a session makes."""
    return name in _FILES or name.startswith(KEPT) or (name.startswith("ring-") and name[5:].isdecimal())


def is_session_of(identity: bytes, pid: int, start_time: int) -> bool:
    """Whether the file `process.json` of a session names this process."""
    try:
        said: Any = json.loads(identity)
    except (ValueError, RecursionError):
        return False
    return bool(said == {"pid": pid, "start_time": start_time})


def process_identity(pid: int | None = None) -> dict[str, int]:
    """Process id and start time (clock ticks since boot), which together name a process for good.

    Source: proc(5), /proc/[pid]/stat, field 22.
    """
    pid = pid or os.getpid()
    try:
        fields = Path(f"/proc/{pid}/stat").read_text()
        start = int(fields.rpartition(")")[2].split()[19])
    except OSError:
        start = 0
    return {"pid": pid, "start_time": start}


def sweep(place: Path, own: Path) -> None:
    """Removes what processes left that were killed long ago, but for the latest: a job that crashes and restarts for
    ever must not fill the memory with rings.

    Only private directories of this user go that say whose session they are, and of those only a session's files.
    """
    left: list[tuple[float, Path]] = []
    for directory in place.glob(f"{PREFIX}*"):
        try:
            about = directory.lstat()
            private = stat.S_ISDIR(about.st_mode) and not about.st_mode & 0o077 and about.st_uid == os.getuid()
            if directory != own and private and _is_left(directory):
                left.append((about.st_mtime, directory))
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.debug("%s is left alone: %s", directory, error)
    for _, directory in sorted(left)[:-KEPT_LEFTOVERS]:
        try:
            for path in directory.iterdir():
                if is_session_file(path.name):
                    path.unlink()
            directory.rmdir()
        except OSError as error:
            log.debug("%s is not removed: %s", directory, error)


def _is_left(directory: Path) -> bool:
    """Whether its process has ended. Raises what reading and decoding raise, if it is no session."""
    file = os.open(directory / IDENTITY, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        identity = json.loads(os.read(file, _MAX_IDENTITY))
    finally:
        os.close(file)
    return bool(process_identity(int(identity["pid"])) != identity)

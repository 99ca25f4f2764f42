"""The sweep: removes sessions of killed processes when no run needs them, or when memory is short.

Sessions are in memory. A job that crashes and restarts for ever must not fill it, and a session that was not recovered yet
stays while there is room.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import re
import time
from pathlib import Path

import msgspec

from stepscope.runtime.errors import FormatError, SessionError
from stepscope.runtime.recovery.session_files import SessionFiles
from stepscope.runtime.session.directory import PREFIX, Identity, in_use, parts, read_identity, remove_session
from stepscope.runtime.session.file_lock import lock
from stepscope.runtime.session.note import SessionNote, Swept, is_recovered, last_use, notes_of, replace_note

log = logging.getLogger("stepscope")

DAY = 86_400.0
"""Seconds for which a session stays that no run needs, while there is memory."""
WEEK = 7 * DAY
"""Seconds for which a session stays that a run still needs, while there is memory."""
FREE_SHARE = 1 / 8
FREE_BYTES = 4 << 30
"""Free space for a new run, for which younger sessions are removed, too: this share, and at most so many bytes."""
TIME_LIMIT_S = 0.02
"""Time that a process spends on old sessions when it starts, while there is room. It looks at them in random order, so that
processes that start later look at the others."""

MEMORY = Path("/dev/shm")
_MEMINFO = re.compile(r"^(\w+): +(\d+) kB$", re.MULTILINE)


class KilledSession(msgspec.Struct, frozen=True):
    """A session whose process was killed."""

    path: Path
    identity: Identity
    last_used: float
    """Time of the last visible write, in seconds since 1970."""
    unrecovered: tuple[tuple[Path, SessionNote], ...]
    """Notes of the runs whose events it contains, and that were not recovered."""

    @classmethod
    def of(cls, path: Path) -> KilledSession | None:
        """Reads a directory. Returns `None` if its process, or a joined one, still runs.

        Raises:
            SessionError: if it is not a private directory of this user with a readable `process.json`.
            OSError: if it cannot be read.
        """
        identity = read_identity(path)
        if identity.running or in_use(path):
            return None
        for part in parts(path):
            with contextlib.suppress(SessionError):
                if read_identity(part).running:
                    return None
        notes = notes_of(path, identity.pid, identity.start_time, os.geteuid())
        # Not from a generator: if another thread lists all objects meanwhile, Python cannot complete the tuple.
        unrecovered = tuple([(run, note) for run, note in notes if not is_recovered(note)])
        return cls(path, identity, last_use(path), unrecovered)


def sweep(place: Path, seconds: float = TIME_LIMIT_S) -> None:
    """Removes sessions of killed processes from a directory, first those that no run needs, and of these the oldest first.

    A session that no run needs is removed after a day; others after a week.
    Younger ones are removed only if less than `FREE_BYTES` and `FREE_SHARE` are free. The note of each run that loses its session
    and the log report it. Only private directories of this user with a readable `process.json` are touched, and of those only a
    session's files; no locked ones.

    Args:
        place: the directory.
        seconds: time after which it looks at no further session, unless room is short.
    """
    try:
        _sweep(place, seconds)
    except OSError as error:  # creating the session there reports the same error
        log.debug("%s is not swept: %s", place, error)


def _sweep(place: Path, seconds: float) -> None:
    scarce = is_scarce(place)
    sessions: list[KilledSession] = []
    directories = list(place.glob(f"{PREFIX}*"))
    # Other programs may have so many files there that the list alone takes as long.
    end = time.monotonic() + (float("inf") if scarce else seconds)
    random.Random().shuffle(directories)  # the program's own generator is left alone
    for directory in directories:
        if time.monotonic() > end:
            break
        try:
            found = KilledSession.of(directory)
        except (OSError, ValueError, SessionError) as error:
            log.debug("%s is left alone: %s", directory, error)
            continue
        if found is not None and not ((why := _reason_to_remove(found)) and _remove(found, why)):
            sessions.append(found)
    sessions.sort(key=lambda session: (bool(session.unrecovered), session.last_used))
    for session in sessions:
        if not is_scarce(place):
            break
        _remove(session, f"{place} was full")


def _reason_to_remove(session: KilledSession) -> str:
    """Why a session is removed however much room there is; empty if it stays."""
    age = time.time() - session.last_used
    if session.unrecovered:
        return "it was left for a week" if age > WEEK else ""
    return "no run needs it" if age > DAY else ""


def _remove(session: KilledSession, why: str) -> bool:
    """Removes a session that is not in use. Returns whether it did."""
    try:
        locked = lock(session.path, alone=True)
    except OSError as error:
        log.debug("%s is left alone, it is in use: %s", session.path, error)
        return False
    try:
        # The notes first: recovery uses a session that is still there, whatever they say.
        events = _events(session) if session.unrecovered else 0
        for path, note in session.unrecovered:
            with contextlib.suppress(OSError):  # the log has it, too
                replace_note(path, msgspec.structs.replace(note, swept=Swept(time.time_ns(), events, why)))
        remove_session(session.path)
    except OSError as error:
        log.debug("%s is not removed: %s", session.path, error)
        return False
    finally:
        os.close(locked)
    if not session.unrecovered:
        log.info("removed the session %s of process %d: %s", session.path, session.identity.pid, why)
    for path, _ in session.unrecovered:
        log.warning(
            "removed the session of process %d, which was killed and not recovered, because %s: at most %d events of %s are "
            "lost that no journal has",
            *(session.identity.pid, why, events, path.parent),
        )
    return True


def _events(session: KilledSession) -> int:
    """Upper bound of events that no journal has; -1 = unknown."""
    try:
        files = SessionFiles(session.path)
    except (OSError, FormatError):
        return -1
    all_files = [files, *files.parts()]
    try:
        return sum(each.waiting() for each in all_files)
    finally:
        for each in all_files:
            each.close()


def is_scarce(place: Path) -> bool:
    """Whether so little of a directory's file system is free that younger sessions are removed. One in memory has at most as much as
    the machine."""
    stat = os.statvfs(place)
    size, free = stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize
    if MEMORY.is_dir() and place.stat().st_dev == MEMORY.stat().st_dev:
        values = dict(_MEMINFO.findall(Path("/proc/meminfo").read_text()))
        total, available = (int(values.get(name, 1 << 50)) << 10 for name in ("MemTotal", "MemAvailable"))
        size, free = min(size, total), min(free, available)
    return free < min(FREE_BYTES, size * FREE_SHARE)

"""The sweep: removes sessions that killed processes left, when nobody needs them or their memory is needed.

Sessions lie in memory. A job that crashes and restarts for ever must not fill it, and what was not recovered yet must
not go while there is room.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from pathlib import Path
from typing import NamedTuple

import msgspec

from stepscope.runtime.errors import FormatError, SessionError
from stepscope.runtime.recovery.left_session import LeftSession
from stepscope.runtime.recovery.session_files import SessionFiles
from stepscope.runtime.session.directory import PREFIX, remove_session
from stepscope.runtime.session.file_lock import lock
from stepscope.runtime.session.note import Swept, replace_note
from stepscope.runtime.threads.background_call import BackgroundCall
from stepscope.runtime.threads.native_threads import Event

log = logging.getLogger("stepscope")

DAY = 86_400.0
"""Seconds for which a session is kept that there is memory for, needed or not."""
MOST_SHARE = 1 / 4
MOST_BYTES = 16 << 30
"""What left sessions that are older than a day may take together: this share of the file system, or of the memory if that is
less, and not more than this."""
FREE_SHARE = 1 / 8
FREE_BYTES = 4 << 30
"""What is left free for a new run, if younger sessions have to go for it: this share, and not more than this."""
PAUSE = 0.001
"""Seconds between two sessions in a process that trains meanwhile."""

_beside: BackgroundCall[None] | None = None
_enough = Event()

MEMORY = Path("/dev/shm")
_MEMINFO = re.compile(r"^(\w+): +(\d+) kB$", re.MULTILINE)


def sweep_beside(place: Path) -> None:
    """Sweeps a directory on a thread of its own, as there may be many sessions; the caller waits only if there is little room.

    What it comes to is in the log. `end_sweep()` leaves the rest to the next.
    """
    global _beside
    try:
        scarce = Room.of(place).scarce
    except OSError as error:  # who makes a directory there is told
        log.debug("%s is not swept: %s", place, error)
        return
    if scarce:
        sweep(place)
    else:
        _enough.clear()
        _beside = BackgroundCall(_sweep_slowly, place, name="stepscope sweep").start()


def end_sweep() -> None:
    """Ends the one that `sweep_beside` began, and waits for its thread for a moment: the last profiler has closed."""
    global _beside
    _enough.set()
    work, _beside = _beside, None
    if work is not None:
        with contextlib.suppress(TimeoutError):  # a session is being removed
            work.result(1)


def _forget() -> None:
    """In a forked child it is the parent's."""
    global _beside
    _beside = None


os.register_at_fork(after_in_child=_forget)


def _sweep_slowly(place: Path) -> None:
    try:
        sweep(place, pause=PAUSE)
    except OSError as error:
        log.warning("sessions of killed processes in %s are not removed: %s", place, error)


def sweep(place: Path, pause: float = 0.0) -> None:
    """Removes sessions of killed processes from a directory, oldest first, those that nobody needs before others.

    Those that no run needs go after a day, and at once if their process had closed its profilers. Those that one needs go after a day when all together take more than
    `MOST_BYTES` or `MOST_SHARE`; only where less than `FREE_BYTES` and `FREE_SHARE` are free, younger ones go as well. The
    note of each such run says so from then on, and so does the log. Only private directories of this user go that say
    whose session they are, and of those only a session's files; none that is locked.

    Args:
        place: the directory.
        pause: seconds between two sessions that are looked at, in which other threads go on.
    """
    left: list[LeftSession] = []
    for directory in place.glob(f"{PREFIX}*"):
        if pause and _enough.wait(pause):
            return
        try:
            found = LeftSession.of(directory)
        except (OSError, ValueError, SessionError) as error:
            log.debug("%s is left alone: %s", directory, error)
        else:
            left += [] if found is None else [found]
    left.sort(key=lambda session: (bool(session.wanted), session.used))
    old = [session for session in left if session.used < time.time() - DAY]
    for session in [session for session in left if not session.wanted and (session.delivered or session in old)]:
        _remove(session, left, "no run needs it")
    for session in old:
        if sum(each.bytes for each in left) > min(MOST_BYTES, Room.of(place).size * MOST_SHARE):
            _remove(session, left, f"sessions of killed processes filled {place}")
    for session in list(left):
        if not Room.of(place).scarce:
            break
        _remove(session, left, f"{place} was full")


def _remove(session: LeftSession, left: list[LeftSession], why: str) -> None:
    if session not in left:
        return
    try:
        locked = lock(session.path, alone=True)
    except OSError as error:
        log.debug("%s is left alone, it is in use: %s", session.path, error)
        return
    try:
        # The notes first: a session that is there is used, whatever they say.
        events = _events(session) if session.wanted else 0
        for path, note in session.wanted:
            with contextlib.suppress(OSError):  # the log says it as well
                replace_note(path, msgspec.structs.replace(note, swept=Swept(time.time_ns(), events, why)))
        remove_session(session.path)
    except OSError as error:
        log.debug("%s is not removed: %s", session.path, error)
        return
    finally:
        os.close(locked)
    left.remove(session)
    if not session.wanted:
        log.info("removed the session %s of process %d: %s", session.path, session.identity.pid, why)
    for path, _ in session.wanted:
        log.warning(
            "removed the session of process %d, which was killed and not recovered, because %s: at most %d events of %s are "
            "lost that no journal has",
            *(session.identity.pid, why, events, path.parent),
        )


def _events(session: LeftSession) -> int:
    """Events that it holds, or says were lost, and that may be in no journal; a part of them may be."""
    try:
        files = SessionFiles(session.path)
    except (OSError, FormatError):
        return -1
    each = [files, *files.parts()]
    try:
        return sum(part.waiting() for part in each)
    finally:
        for part in each:
            part.close()


class Room(NamedTuple):
    """How much there is, in bytes."""

    size: int
    free: int

    @property
    def scarce(self) -> bool:
        """Whether so little is free that younger sessions go as well."""
        return self.free < min(FREE_BYTES, self.size * FREE_SHARE)

    @classmethod
    def of(cls, place: Path) -> Room:
        """Of a directory's file system; of one in memory, no more than there is memory."""
        about = os.statvfs(place)
        size, free = about.f_blocks * about.f_frsize, about.f_bavail * about.f_frsize
        if not MEMORY.is_dir() or place.stat().st_dev != MEMORY.stat().st_dev:
            return cls(size, free)
        said = dict(_MEMINFO.findall(Path("/proc/meminfo").read_text()))
        kib = {name: int(said.get(name, 1 << 50)) for name in ("MemTotal", "MemAvailable")}
        return cls(min(size, kib["MemTotal"] << 10), min(free, kib["MemAvailable"] << 10))

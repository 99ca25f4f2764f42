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
from stepscope.runtime.recovery.killed_session import KilledSession
from stepscope.runtime.recovery.session_files import SessionFiles
from stepscope.runtime.session.directory import PREFIX, remove_session
from stepscope.runtime.session.file_lock import lock
from stepscope.runtime.session.note import Swept, replace_note
from stepscope.runtime.threads.background_call import BackgroundCall
from stepscope.runtime.threads.native_threads import Event

log = logging.getLogger("stepscope")

DAY = 86_400.0
"""Seconds for which a session stays that no run needs, while there is memory."""
WEEK = 7 * DAY
"""Seconds for which a session stays that a run still needs, while there is memory."""
FREE_SHARE = 1 / 8
FREE_BYTES = 4 << 30
"""Free space for a new run, for which younger sessions are removed, too: this share, and at most so many bytes."""
PAUSE_S = 0.2
"""Between two sessions while the process trains: to look at one takes up to two milliseconds with the interpreter's lock, and
hundreds of sessions may be left."""

MEMORY = Path("/dev/shm")
_MEMINFO = re.compile(r"^(\w+): +(\d+) kB$", re.MULTILINE)

_running: BackgroundCall[None] | None = None
_stop = Event()


def sweep_in_background(place: Path) -> None:
    """Sweeps a directory on a thread, as there may be many sessions. Only if space is short, it sweeps before it returns.

    Results and errors are logged. `end_sweep()` stops the thread; the next sweep does the rest.
    """
    global _running
    try:
        scarce = is_scarce(place)
    except OSError as error:  # creating the session there reports the same error
        log.debug("%s is not swept: %s", place, error)
        return
    if scarce:
        sweep(place)
    else:
        _stop.clear()
        try:
            _running = BackgroundCall(_sweep_slowly, place, name="stepscope sweep", elsewhere=True).start()
        except RuntimeError as error:  # no further thread: the program does not wait for it either
            log.debug("%s is not swept: %s", place, error)


def end_sweep() -> None:
    """Stops the sweep in the background, and waits a moment for its thread: the last profiler has closed."""
    global _running
    _stop.set()
    work, _running = _running, None
    if work is not None:
        with contextlib.suppress(TimeoutError):  # a session is being removed
            work.result(1)


def _forked() -> None:
    """The thread belongs to the parent."""
    global _running
    _running = None


os.register_at_fork(after_in_child=_forked)


def _sweep_slowly(place: Path) -> None:
    try:
        sweep(place, pause=PAUSE_S)
    except OSError as error:
        log.warning("sessions of killed processes in %s are not removed: %s", place, error)


def sweep(place: Path, pause: float = 0.0) -> None:
    """Removes sessions of killed processes from a directory, first those that no run needs, and of these the oldest first.

    A session that no run needs is removed after a day; others after a week.
    Younger ones are removed only if less than `FREE_BYTES` and `FREE_SHARE` are free. The note of each run that loses its session
    and the log report it. Only private directories of this user with a readable `process.json` are touched, and of those only a
    session's files; no locked ones.

    Args:
        place: the directory.
        pause: seconds to wait before each session, for other threads.
    """
    sessions: list[KilledSession] = []
    directories = list(place.glob(f"{PREFIX}*"))
    if (
        pause
    ):  # short runs, which end before they have seen all, look at different ones; the program's generator is left alone
        random.Random().shuffle(directories)
    for directory in directories:
        if pause and _stop.wait(pause):
            return
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
    parts = [files, *files.parts()]
    try:
        return sum(part.waiting() for part in parts)
    finally:
        for part in parts:
            part.close()


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

"""The private directory of a job, which records the processes of its ranks.

It is next to the watched file, and its name depends on that file, the job and the user, so that unrelated jobs use different
ones. Rank 0 writes `current.json` with its process and the directory of its run. The next rank 0 deletes runs of processes that
have ended.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import time
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from stepscope.runtime.control.agreement.peer import Peer
from stepscope.runtime.errors import ControlError
from stepscope.runtime.files.encoding import json_bytes
from stepscope.runtime.files.file_reading import create_once, read_bounded
from stepscope.runtime.files.private_files import replace_private

T = TypeVar("T", bound=msgspec.Struct)

MAX_RECORD_BYTES = 1 << 20
BEAT_S = 1.0
"""Seconds between two heartbeats of rank 0, for processes on other machines."""
LOST_AFTER_S = 15.0
"""After so many seconds without a heartbeat, a rank 0 on another machine counts as ended."""


class Current(msgspec.Struct, frozen=True):
    """The current run of the directory."""

    run: Annotated[str, msgspec.Meta(pattern="^run-[0-9a-f-]{1,80}$")]
    """Directory of its files."""
    coordinator: Peer
    """The process of rank 0."""


class JobDirectory:
    """A directory of this user only. One that belongs to other users, or is accessible to them, is refused."""

    def __init__(self, watched: Path, job: str) -> None:
        """Args: the watched file; the job's name, empty if there is none."""
        watched = watched.parent.resolve() / watched.name
        named = hashlib.sha256(os.fsencode(f"{os.geteuid()}\0{job}\0{watched}")).hexdigest()[:16]
        self.path = watched.parent / f".stepscope-{named}"
        self._current = self.path / "current.json"
        self._seen: tuple[str, int] = "", 0
        self._seen_at = self._next_beat = 0.0
        self._beats = False

    def make(self, *, create: bool = True) -> None:
        """Makes the directory, or only checks it: it must belong to this user and be closed to others.

        Raises:
            ControlError: if the check fails.
            OSError: if it cannot be made, or does not exist.
        """
        if create:
            with contextlib.suppress(FileExistsError):
                self.path.mkdir(mode=0o700)
        about = self.path.lstat()
        if not stat.S_ISDIR(about.st_mode):
            raise ControlError(f"{self.path} is no directory; remove it")
        if about.st_uid != os.geteuid():
            raise ControlError(f"{self.path} belongs to user {about.st_uid}; choose another directory for control")
        if about.st_mode & 0o077:
            raise ControlError(f"{self.path} is open to other users (mode {about.st_mode & 0o777:o}); remove it")

    def enter(self, rank: int, entered: Path | None) -> Path | None:
        """Joins the current run. Rank 0 begins it, and sends a heartbeat in each call.

        Args:
            rank: of this process.
            entered: the run that it joined before. It stays in it even if rank 0 has ended.

        Returns:
            Directory of the run; `None` if there is none yet: call again soon.

        Raises:
            ControlError: if the directory is not private, or another process has this rank.
            OSError: if the directory cannot be used.
        """
        try:
            self.make(create=rank == 0)
        except FileNotFoundError:
            if rank == 0 and self.path.parent.is_dir():
                raise
            return None
        current, me = read_record(self._current, Current), Peer.here()
        if rank == 0 and (current is None or current.coordinator != me):
            alive = current is not None and self._is_alive(current)
            if alive and current is not None:
                raise _occupied(0, current.coordinator)
            return None if alive is None else self._begin(me)
        if current is None or not ((entered and entered.name == current.run) or self._is_alive(current)):
            return None
        run = self.path / current.run
        if rank == 0:
            run.mkdir(mode=0o700, exist_ok=True)
            if time.monotonic() >= self._next_beat:
                self._next_beat = time.monotonic() + BEAT_S
                os.utime(self._current)
        elif not run.is_dir():
            return None
        elif run != entered:
            _claim(run / f"rank-{rank}.json", rank, me)
        return run

    @property
    def has_coordinator(self) -> bool:
        """Whether rank 0 certainly lives."""
        current = read_record(self._current, Current)
        return current is not None and self._is_alive(current) is True

    def _begin(self, me: Peer) -> Path:
        machine = hashlib.sha256(me.machine.encode()).hexdigest()[:8]
        run = self.path / f"run-{me.start_time}-{me.pid}-{machine}"
        before = [old for old in self.path.glob("run-*") if old != run]
        run.mkdir(mode=0o700, exist_ok=True)
        replace_private(self._current, json_bytes(Current(run.name, me)))
        for old in before:
            shutil.rmtree(old, ignore_errors=True)
        return run

    def _is_alive(self, current: Current) -> bool | None:
        """Whether the run's rank 0 lives; `None` if it is on another machine and was not observed for long enough."""
        if current.coordinator.is_local:
            return not current.coordinator.is_dead
        try:
            seen = current.run, self._current.stat().st_mtime_ns
        except FileNotFoundError:
            return None
        now = time.monotonic()
        if seen != self._seen:
            self._beats = self._seen[0] == current.run
            self._seen, self._seen_at = seen, now
        if now - self._seen_at >= LOST_AFTER_S:
            return False
        return True if self._beats else None


def _claim(path: Path, rank: int, me: Peer) -> None:
    """Registers this process as the rank of a run, by a file with its identity."""
    if not create_once(path, json_bytes(me)):
        other = read_record(path, Peer)
        if other is None or other.is_dead:
            replace_private(path, json_bytes(me))
        elif other != me:
            raise _occupied(rank, other)


def _occupied(rank: int, by: Peer) -> ControlError:
    return ControlError(
        f"rank {rank} is {by} in this job already; set STEPSCOPE_JOB to different names for different jobs"
    )


def read_record(path: Path, kind: type[T]) -> T | None:
    """Reads a small record; `None` if it does not exist or cannot be read. A link is not followed."""
    reading = read_bounded(path, MAX_RECORD_BYTES, follow=False)
    if reading.content is None:
        return None
    try:
        return msgspec.json.decode(reading.content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None

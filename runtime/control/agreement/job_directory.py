"""The directory in which the ranks of one job find each other: who may use it, who leads, and which run it is about.

A job's directory lies beside the watched file and is named after that file, the job and the user, so that unrelated jobs
never meet. What a run before left there is recognised by its processes, which have ended, and is taken over.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import logging
import os
import shutil
import stat
from pathlib import Path
from typing import TypeVar

import msgspec

from stepscope.runtime.control.agreement.peer import SILENCE, Peer
from stepscope.runtime.control.entry_points.file_reading import read_bounded
from stepscope.runtime.errors import ControlError
from stepscope.runtime.files.encoding import json_bytes
from stepscope.runtime.files.private_files import replace_private
from stepscope.runtime.session.file_lock import is_locked_by_another
from stepscope.runtime.threads import locks

log = logging.getLogger("stepscope")

T = TypeVar("T", bound=msgspec.Struct)

LIMIT = 1 << 16
"""Bytes of a record."""


class Current(msgspec.Struct, frozen=True):
    """Which run the directory is about, and who leads it."""

    epoch: str
    """Names the run; also the directory of its records."""
    leader: Peer


class Member(msgspec.Struct, frozen=True, omit_defaults=True):
    """One rank of the run."""

    rank: int
    peer: Peer
    left: bool = False
    """Whether it has ended as it should."""
    waits: bool = False
    """Whether it has left, and its process takes part again when the run is over, or has waited long enough for that."""


class JobDirectory:
    """Beside the watched file; made for this user only."""

    def __init__(self, watched: Path, job: str) -> None:
        """Args: the watched file; what the job is called, empty where nobody says."""
        watched = watched.parent.resolve() / watched.name
        named = hashlib.sha256(os.fsencode(f"{os.geteuid()}\0{job}\0{watched}")).hexdigest()[:16]
        self.path = watched.parent / f".stepscope-{named}"
        self.me = Peer.here()
        self._lock = -1

    def make(self) -> None:
        """Makes it.

        Raises:
            ControlError: if what is there is somebody else's, or open to others.
            OSError: if it cannot be made.
        """
        self.me = Peer.here()  # which may be a child that was forked meanwhile
        with contextlib.suppress(FileExistsError):
            self.path.mkdir(mode=0o700)
        about = self.path.lstat()
        if not stat.S_ISDIR(about.st_mode):
            raise ControlError(f"{self.path} is no directory; remove it")
        if about.st_uid != os.geteuid():
            raise ControlError(f"{self.path} belongs to user {about.st_uid}; choose another directory for control")
        if about.st_mode & 0o077:
            raise ControlError(f"{self.path} is open to other users (mode {about.st_mode & 0o777:o}); remove it")

    # who leads

    @property
    def leads(self) -> bool:
        """Whether this process leads."""
        return self._lock >= 0

    def try_to_lead(self) -> bool:
        """Takes the lock if nobody has it. The system gives it back when its process ends, in whatever way.

        Returns:
            Whether this process leads.

        Raises:
            ControlError: if the file system has no locks.
            OSError: if the directory is gone.
        """
        if self._lock >= 0:
            return True
        with _guard:
            if str(self.path) in _led:  # the lock is the process's: it would not hold off another profiler of it
                return False
            file = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                # Of the process, not of the open file: children that are forked do not keep it.
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(file)
                if is_locked_by_another(error):
                    return False
                raise ControlError(
                    f"the file system of {self.path} has no locks ({error.strerror}), so the ranks cannot agree on a window: "
                    "put the control file on one that has, or set agree=False, and each rank records by itself"
                ) from error
            _led.add(str(self.path))
            self._lock = file
            return True

    def stop_leading(self) -> None:
        """Lets another one lead."""
        with _guard:
            if self._lock >= 0:
                os.close(self._lock)
                self._lock = -1
                _led.discard(str(self.path))

    # which run

    def current(self) -> Current | None:
        """Which run is going on; `None` if that is not known."""
        return read_record(self.path / "current.json", Current)

    def enter(self, rank: int, but: str = "") -> Path | None:
        """Finds the run that this process is part of, or begins one.

        Args:
            rank: of this process.
            but: a run that is not entered; it has to be over before another one begins.

        Returns:
            Directory of its records; `None` if that is not decided yet, so that the caller tries again soon.

        Raises:
            OSError: if the directory cannot be used.
        """
        current = self.current()
        if current is not None and current.epoch == but and self.goes_on(but, rank):
            return None
        if not self.try_to_lead():
            if current is None or current.leader.is_dead or current.epoch == but:
                return None  # who leads now has yet to say so
            return self.path / current.epoch if (self.path / current.epoch).is_dir() else None
        current = self.current()  # another one may have begun a new run before
        if current is None or not self.goes_on(current.epoch, rank):
            machine = hashlib.sha256(self.me.machine.encode()).hexdigest()[:8]
            epoch = f"run-{self.me.start_time}-{self.me.pid}-{machine}-{next(_runs)}"
            before = list(self.path.glob("run-*"))
            (self.path / epoch).mkdir(mode=0o700)
            self.say_leader(epoch)
            for old in before:  # from now on nobody takes what is left of it for a run
                shutil.rmtree(old, ignore_errors=True)
            log.info("control: a new run in %s", self.path)
            return self.path / epoch
        if current.epoch == but:
            self.stop_leading()
            return None
        self.say_leader(current.epoch)
        return self.path / current.epoch

    def say_leader(self, epoch: str) -> None:
        """Writes that this process leads the run."""
        replace_private(self.path / "current.json", json_bytes(Current(epoch, self.me)))

    def goes_on(self, epoch: str, rank: int) -> bool:
        """Whether another one of the run lives than this process as this rank. Of those of other machines only the time of
        their files tells.

        Raises:
            OSError: if the directory cannot be used.
        """
        directory = self.path / epoch
        if not directory.is_dir():
            return False
        os.utime(self.path / "lock")
        now = (self.path / "lock").stat().st_mtime  # by the clock of the file system
        for path in directory.glob("member-*.json"):
            member = read_record(path, Member)
            if member is None or member.left or member.peer.is_dead or (member.rank, member.peer) == (rank, self.me):
                continue
            if member.peer.is_local or now - path.stat().st_mtime < SILENCE:
                return True
        return False


_runs = itertools.count(1)
"""A process may begin several runs, one after the other: no two have one name."""
_led: set[str] = set()
_guard = locks.reentrant()


def _forget() -> None:
    """A forked child leads nothing."""
    _led.clear()


os.register_at_fork(after_in_child=_forget)


def read_record(path: Path, kind: type[T]) -> T | None:
    """Reads a small record; `None` if there is none, or none that can be read."""
    reading = read_bounded(path, LIMIT)
    if reading.content is None:
        return None
    try:
        return msgspec.json.decode(reading.content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None

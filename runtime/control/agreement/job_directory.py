"""The private directory of a job, next to the watched file, and in it a directory for each run of a process as rank 0.

Its name depends on the watched file, the job and the user, so that unrelated jobs use different ones. `current.json` names the
run. Rank 0 touches it in each turn, and takes the place of another process that has not done so for a while. The other ranks use
no run whose rank 0 shows no sign of life, such as that of a killed job.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import time
from functools import cache
from pathlib import Path
from typing import Annotated

import msgspec

from stepscope.runtime.control.agreement.plans import read_record
from stepscope.runtime.errors import ControlError
from stepscope.runtime.files.encoding import json_bytes
from stepscope.runtime.files.private_files import replace_private


class Current(msgspec.Struct, frozen=True):
    """The content of `current.json`."""

    run: Annotated[str, msgspec.Meta(pattern="^run-[0-9a-f]{1,80}$")]
    """Directory of the current run."""


class JobDirectory:
    """A directory of this user only. One that belongs to other users, or is accessible to them, is refused."""

    def __init__(self, watched: Path, job: str, rank: int = 0) -> None:
        """Args: the watched file; the job's name, empty if there is none; the rank of this process."""
        watched = watched.parent.resolve() / watched.name
        named = hashlib.sha256(os.fsencode(f"{os.geteuid()}\0{job}\0{watched}")).hexdigest()[:16]
        self.path = watched.parent / f".stepscope-{named}"
        self._rank = rank
        self._current = self.path / "current.json"
        self._run: Path | None = None
        self._seen: tuple[Current | None, int] | None = None
        """The run and the time of `current.json` when this rank looked last; `None` before the first look."""
        self._changed_at = float("-inf")
        self._waits_since: float | None = None
        """Since when this process would be rank 0, and another one may be."""

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

    def enter(self, quiet_s: float) -> Path | None:
        """Joins the current run. Rank 0 begins it, and shows a sign of life in each call.

        Args:
            quiet_s: seconds without a sign of life after which rank 0 takes the place of another process.

        Returns:
            Directory of the run; `None` if there is none yet: call again soon.

        Raises:
            ControlError: if the directory is not private, or another process is rank 0.
            OSError: if the directory cannot be used.
        """
        try:
            self.make(create=self._rank == 0)
        except FileNotFoundError:
            if self._rank == 0 and self.path.parent.is_dir():
                raise
            return None
        if self._rank == 0:
            return self._lead(quiet_s)
        touched = 0
        with contextlib.suppress(FileNotFoundError):  # before it is read: an older run never counts as touched just now
            touched = self._current.stat().st_mtime_ns
        current = read_record(self._current, Current)
        if self._seen not in (None, (current, touched)):
            self._changed_at = time.monotonic()
            if current is not None and self._run != self.path / current.run:
                (self.path / current.run / f"rank-{self._rank}").touch(mode=0o600)
                self._run = self.path / current.run
        self._seen = current, touched
        return self._run

    def has_coordinator(self, within_s: float) -> bool:
        """Whether rank 0 has shown a sign of life to this rank in the last `within_s` seconds."""
        return time.monotonic() - self._changed_at < within_s

    def _lead(self, quiet_s: float) -> Path | None:
        current = read_record(self._current, Current)
        if current is not None and self._run == self.path / current.run:
            os.utime(self._current)
            return self._run
        if self._is_touched(quiet_s):
            # The one that touched it may have been killed since.
            self._waits_since = time.monotonic() if self._waits_since is None else self._waits_since
            if time.monotonic() - self._waits_since < quiet_s:
                return None
            raise ControlError(
                "another process is rank 0 of this job; set STEPSCOPE_JOB to different names for different jobs"
            )
        before = list(self.path.glob("run-*"))
        self._run = self.path / f"run-{os.urandom(8).hex()}"
        self._run.mkdir(mode=0o700)
        replace_private(self._current, json_bytes(Current(self._run.name)))
        for old in before:
            shutil.rmtree(old, ignore_errors=True)
        self._waits_since = None
        return self._run

    def _is_touched(self, within_s: float) -> bool:
        """Whether somebody has touched `current.json` in the last seconds, by the clock of the file system."""
        os.utime(self.path)
        try:
            touched_ns = self._current.stat().st_mtime_ns
        except FileNotFoundError:
            return False
        return self.path.stat().st_mtime_ns - touched_ns < within_s * 1e9


@cache
def job_directory(watched: Path, job: str, rank: int) -> JobDirectory:
    """Returns the same object for all profilers of this process, so that a later one has joined already."""
    return JobDirectory(watched, job, rank)


os.register_at_fork(after_in_child=job_directory.cache_clear)

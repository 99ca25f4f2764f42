"""The files by which ranks agree: a private directory of the job, next to the watched file, and in it one for each run of rank 0.

Its name depends on the watched file, the job and the user, so that unrelated jobs use different ones. `current.json` names the
run. Rank 0 touches it in each turn, and takes the place of another process that has not done so for a while. The other ranks use
no run whose rank 0 shows no sign of life, such as that of a killed job. The files of a run are written once, in one step:

plan-N.json         rank 0: the steps of a window, another end of windows, or the reason of a refusal
request-KEY.json    another rank: a request that it received; rank 0 deletes it when it has decided
unable-N-RANK.json  another rank: the reason why it cannot follow plan N
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
import time
from functools import cache
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from stepscope.runtime.errors import ControlError
from stepscope.runtime.files.encoding import json_bytes
from stepscope.runtime.files.file_reading import create_once, read_bounded
from stepscope.runtime.files.private_files import replace_private
from stepscope.runtime.requests.end_change import EndChange, EndRequest
from stepscope.runtime.requests.window_request import WindowRequest

T = TypeVar("T")

AnyRequest = WindowRequest | EndRequest
"""A window, or another end of existing windows."""

MAX_RECORD_BYTES = 1 << 20
MAX_PLANS = 16
"""Plans in the directory; older ones are deleted."""
FILE_TICK_S = 0.05
"""Times of files advance in ticks, of 10 ms at most on Linux: a file looks younger than it is by up to two."""

_PLAN = re.compile(r"plan-(\d{1,9})\.json")
_UNABLE = re.compile(r"unable-\d{1,9}-(\d{1,9})\.json")


class Request(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request that one rank forwards to rank 0: `window` or `end`."""

    profiler: str
    """Name of the profiler within its process."""
    trigger: str
    """Its origin, such as `file` or `socket`."""
    window: WindowRequest | None = None
    end: EndRequest | None = None

    @property
    def payload(self) -> AnyRequest:
        """The one of the two that is set."""
        return self.window or self.end or EndRequest(command="abort")


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """Rank 0's decision on a request: a window, a change, or a refusal."""

    key: str
    """Identifies the request."""
    request: Request
    window: WindowRequest | None = None
    """The window to record: its start step, and its last step or its length, are numbers."""
    change: EndChange | None = None
    """The new end of existing windows."""
    refused: str = ""
    """Why nothing is recorded or changed."""


class Plans:
    """The files of one run. Methods raise `OSError` if the directory cannot be used."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def numbers(self, after: int = 0) -> list[int]:
        """Returns the numbers of the plans after this one, in order."""
        found = (_PLAN.fullmatch(path.name) for path in self.directory.iterdir())
        return sorted(number for match in found if match and (number := int(match[1])) > after)

    def ranks(self) -> int:
        """Returns the number of ranks that have joined, without rank 0."""
        return sum(1 for _ in self.directory.glob("rank-*"))

    def plan(self, number: int) -> Plan | None:
        """Reads a plan; `None` if it does not exist or cannot be read."""
        return read_record(self.directory / f"plan-{number}.json", Plan)

    def publish(self, plan: Plan) -> int:
        """Writes a plan with the next number, which it returns. Deletes the oldest plan, and what ranks reported of it."""
        number = max(self.numbers(), default=0) + 1
        oldest = number - MAX_PLANS
        for path in (self.directory / f"plan-{oldest}.json", *self.directory.glob(f"unable-{oldest}-*.json")):
            path.unlink(missing_ok=True)
        while not create_once(self.directory / f"plan-{number}.json", json_bytes(plan)):
            number += 1
        return number

    def request_path(self, key: str) -> Path:
        return self.directory / f"request-{key}.json"

    def requests(self, profiler: str) -> list[tuple[str, Request]]:
        """Returns the requests of other ranks for one profiler, with their keys."""
        found = [(path.stem[8:], read_record(path, Request)) for path in self.directory.glob("request-*.json")]
        return [(key, request) for key, request in found if request is not None and request.profiler == profiler]

    def forward(self, key: str, request: Request) -> None:
        create_once(self.request_path(key), json_bytes(request))

    def report_unable(self, number: int, rank: int, reason: str) -> None:
        create_once(self.directory / f"unable-{number}-{rank}.json", json_bytes(reason))

    def unable(self, number: int) -> dict[int, str]:
        """Returns the reasons of ranks that cannot follow a plan, by rank."""
        found = [(_UNABLE.fullmatch(path.name), path) for path in self.directory.glob(f"unable-{number}-*.json")]
        reasons = {int(match[1]): read_record(path, str) for match, path in found if match}
        return {rank: reason for rank, reason in sorted(reasons.items()) if reason is not None}


def read_record(path: Path, kind: type[T]) -> T | None:
    """Reads a small record; `None` if it does not exist or cannot be read. A link is not followed."""
    reading = read_bounded(path, MAX_RECORD_BYTES, follow=False)
    if reading.content is None:
        return None
    try:
        return msgspec.json.decode(reading.content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


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
        """Joins the current run, and returns its directory; `None` if there is none yet. Rank 0 begins it, and shows a sign of life
        in each call. It takes the place of another process that has shown none for `quiet_s` seconds.

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
            if time.monotonic() - self._waits_since < quiet_s + FILE_TICK_S:
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

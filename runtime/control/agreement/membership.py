"""One rank's place in the run of its job: how it comes in, shows that it lives, and leaves."""

from __future__ import annotations

import contextlib
import os
import time

from stepscope.runtime.control.agreement.job_directory import JobDirectory, Member, read_record
from stepscope.runtime.control.agreement.records import Records
from stepscope.runtime.errors import ControlError
from stepscope.runtime.files.encoding import json_bytes
from stepscope.runtime.files.private_files import replace_private
from stepscope.runtime.threads import locks

BEAT = 5.0
"""Seconds, at most, between two signs of life for ranks of other machines, which cannot look at this process."""


class Membership:
    """A profiler's part in a run begins with `look` and ends with `leave`. A run is over when all its ranks have left it:
    so profilers of a process that follow each other, as the stages of a training do, are in runs of their own, and each meets
    those of the other ranks that came as far.
    """

    def __init__(self, directory: JobDirectory, rank: int, patience: float) -> None:
        """
        Args:
            directory: of the job.
            rank: of this process.
            patience: seconds that a missing directory is waited for, and the others wait for a rank. The end of a run that this
                process has left is waited for half of that, so that they still have time to ask it.
        """
        self.records: Records | None = None
        """Those of the run; `None` while this rank takes part in none."""
        self.again = False
        """Whether this process had left the run before."""
        self.leaving = False
        """Whether `leave` is about to be called; until then no other profiler of this process comes in as the same rank."""
        self.beat = min(BEAT, patience / 8)
        """Seconds between two signs of life."""
        self._directory, self._rank, self._patience = directory, rank, patience
        self._next_beat = 0.0
        self._missing = 0.0
        """Since when there is no directory in which the job's can be made; 0: there is one."""
        self._outside = 0.0
        """Since when the end of a run is waited for that this process has left; 0: of none."""
        self._awaited: Records | None = None
        """Of that run, where the others have been told."""

    def look(self) -> Records | None:
        """Comes in where that is possible; others may have begun another run.

        Returns:
            The records of the run, another object if it is another run; `None` if there is none yet.

        Raises:
            ControlError: if this rank cannot take part: another process has its number, or somebody else the directory.
            OSError: if the directory cannot be used.
        """
        if self.records is None or not self._is_current(self.records):
            self.drop()
            self._enter()
        if self.records is not None:
            self._show_life(self.records)
        return self.records

    def leave(self) -> None:
        """Nobody waits for this rank any more.

        Raises:
            OSError: if that cannot be said.
        """
        awaited, self._awaited = self._awaited, None
        try:
            if self.records is not None:
                self._say(self.records, left=not self._same())
            elif awaited is not None:
                self._say(awaited, left=True)
        finally:
            self.drop()

    def drop(self) -> None:
        """Has a part in no run, without a word."""
        with _guard:
            if self in _inside:
                _inside.remove(self)
        self.records = None
        self._directory.stop_leading()

    def _is_current(self, records: Records) -> bool:
        """Whether the run is still the one that this rank entered; leads it if nobody does any more."""
        epoch = records.directory.name
        current = self._directory.current()
        if current is None or current.epoch != epoch:
            return False
        if not self._directory.leads and self._directory.try_to_lead():
            current = self._directory.current()  # another one may have begun a new run before
            if current is None or current.epoch != epoch:
                return False
            self._directory.say_leader(epoch)
        return True

    def _enter(self) -> None:
        if any(other.leaving for other in self._same()) or not self._make():
            return
        before = self._left_before()
        if before:
            now = time.monotonic()
            self._outside = self._outside or now
            if now - self._outside >= self._patience / 2:
                before = ""
        found = self._directory.enter(self._rank, before)
        if found is None:
            if before and self._awaited is None:
                self._say_waiting(before)
            return
        records = Records(found)
        other = self._member(records)
        current = self._directory.current()
        if current is None or current.epoch != found.name:  # it was over by then, and its records are being deleted
            return
        if other is not None and not other.left and other.peer != self._directory.me and not other.peer.is_dead:
            self._directory.stop_leading()
            raise ControlError(
                f"rank {self._rank} is {other.peer} in this job already; set STEPSCOPE_JOB to different names for "
                "different jobs"
            )
        self.again = other is not None and other.left and other.peer == self._directory.me
        self._outside, self._awaited = 0.0, None
        self.records = records
        with _guard:
            _inside.append(self)
        self._say(records)

    def _say_waiting(self, epoch: str) -> None:
        """Says to the others that this process has come to what follows the run, so that they ask it before they decide."""
        records = Records(self._directory.path / epoch)
        with contextlib.suppress(FileNotFoundError):  # the run has just ended
            self._say(records, left=True, waits=True)
            self._awaited = records

    def _make(self) -> bool:
        """Makes the job's directory; false if rank 0 has yet to make the one of the watched file."""
        try:
            self._directory.make()
        except FileNotFoundError:
            now = time.monotonic()
            self._missing = self._missing or now
            if now - self._missing < self._patience:
                return False
            raise
        self._missing = 0.0
        return True

    def _left_before(self) -> str:
        """The run, if this process has left it; empty if it has not."""
        current = self._directory.current()
        if current is None:
            return ""
        member = self._member(Records(self._directory.path / current.epoch))
        return current.epoch if member is not None and member.left and member.peer == self._directory.me else ""

    def _member(self, records: Records) -> Member | None:
        return read_record(records.path("member", self._rank), Member)

    def _say(self, records: Records, *, left: bool = False, waits: bool = False) -> None:
        member = Member(self._rank, self._directory.me, left, waits)
        replace_private(records.path("member", self._rank), json_bytes(member))

    def _show_life(self, records: Records) -> None:
        now = time.monotonic()
        if now >= self._next_beat:
            self._next_beat = now + self.beat
            os.utime(records.path("member", self._rank))

    def _same(self) -> list[Membership]:
        """Those of other profilers of this process that have a part in the job as the same rank."""
        with _guard:
            return [
                other
                for other in _inside
                if other is not self and (other._rank, other._directory.path) == (self._rank, self._directory.path)
            ]


_inside: list[Membership] = []
"""Of this process."""
_guard = locks.reentrant()


def _forget() -> None:
    """A forked child has a part in nothing."""
    _inside.clear()


os.register_at_fork(after_in_child=_forget)

"""The recordings of one job, by rank."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from stepscope.collector.clocks.timeline import (
    ClockModel,
    Fitted,
    Pieces,
    Readings,
    Timeline,
    contradict,
    pieces_by_clock,
)
from stepscope.collector.runs.recording import Recording
from stepscope.exporters.stream.protocol import job_of as job_of
from stepscope.runtime.errors import FormatError
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.journal.records import RunRecord
from stepscope.runtime.session.ranks import missing_ranges, usual_size

SAME_CLOCK_NS = 50_000_000
"""Two processes read one monotonic clock if its name is the same and their wall clocks agree so well: a machine that was
copied while it ran has the name of the other."""
WITNESSES = 3
"""So many processes that read a clock are compared with each one whose clock has the same name."""


def jobs_of(recordings: Sequence[Recording]) -> dict[str, list[Recording]]:
    """Recordings by job."""
    jobs: dict[str, list[Recording]] = {}
    for recording in recordings:
        jobs.setdefault(job_of(recording.run), []).append(recording)
    return jobs


def chosen_job(
    recordings: Sequence[Recording], job: str | None, sources: Sequence[Path] = ()
) -> tuple[str, list[Recording]]:
    """The name and the recordings of one job.

    Args:
        job: the name; `None` if there is one job only.

    Raises:
        FormatError: if there is none of that name, or if there are several and none was chosen.
    """
    jobs = jobs_of(recordings)
    names = ", ".join(repr(name) for name in sorted(jobs))
    if job is not None:
        if job not in jobs:
            raise FormatError(f"there is no job {job!r}; there is {names or 'none'}")
        return job, jobs[job]
    if len(jobs) != 1:
        where = f" in {', '.join(map(str, sources))}" if sources else ""
        raise FormatError(
            f"there are several jobs, choose one with --job: {names}" if jobs else f"there is no journal{where}"
        )
    return next(iter(jobs.items()))


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One process of a job: a rank, or the same rank after it was started again; or one of several recordings that share its
    windows."""

    number: int
    """Number from 0, by rank and then by time; unique in the job."""
    rank: int | None
    start: int
    """Number of the start, 0 for the rank's first process."""
    recording: Recording
    clock: str
    """Members with the same one read the same clock, and so are exactly in order."""
    fitted: Fitted

    @property
    def model(self) -> ClockModel:
        """The model of its clock."""
        return self.fitted.model

    @property
    def label(self) -> str:
        """The member's name in reports and on rows."""
        rank = f"rank {self.rank}" if self.rank is not None else f"process {self.recording.run.pid}"
        return f"{rank} (start {self.start + 1})" if self.start else rank

    def reference(self, at: int) -> int:
        """The reference's ns for one time of its clock."""
        return int(self.model.to_reference(np.array([at], np.int64))[0])

    def error(self, at: int) -> float:
        """The error bound of that time, in ns."""
        return float(self.model.error(np.array([at], np.int64))[0])


class Job:
    """The members of a job, on one time line."""

    def __init__(self, name: str, recordings: Sequence[Recording]) -> None:
        """
        Args:
            recordings: all of it; at least one.
        """
        self.name = name
        clocks = _clocks(recordings)
        readings: dict[str, Readings] = {}
        for key, sharing in clocks.items():
            syncs = [sync for recording in sharing for sync in recording.syncs]
            newest = max(sharing, key=lambda recording: recording.run.anchor.monotonic_ns)
            readings[key] = Readings(syncs, newest.run.anchor)
        self.timeline = Timeline(readings)
        rows = [(recording, key) for key, sharing in clocks.items() for recording in sharing]
        rows.sort(key=lambda row: self._order(*row))
        self.members: list[Member] = []
        starts: dict[int, dict[RunRecord, int]] = {}
        for number, (recording, key) in enumerate(rows):
            rank = recording.run.rank
            numbers = starts.setdefault(rank, {}) if rank is not None else {}
            self.members.append(
                Member(
                    number=number,
                    rank=rank,
                    start=numbers.setdefault(recording.process, len(numbers)),
                    recording=recording,
                    clock=key,
                    fitted=self.timeline[key],
                )
            )

    def concurrent(self) -> list[str]:
        """Ranks of which two processes ran at the same time, as sentences: they share a number by mistake."""
        notes: list[str] = []
        for earlier, later in zip(self.members, self.members[1:], strict=False):
            if earlier.rank is None or earlier.rank != later.rank or earlier.start == later.start:
                continue
            end, start = earlier.recording.last_ns, later.recording.first_ns
            overlap = earlier.reference(end) - later.reference(start)
            if overlap > error_between(earlier, end, later, start) and later.recording.events:
                notes.append(f"{earlier.label} and {later.label} ran at the same time: do two processes have one rank?")
        return notes

    @property
    def ranks(self) -> list[int]:
        """The ranks of the recordings, in order."""
        return sorted({member.rank for member in self.members if member.rank is not None})

    @property
    def missing(self) -> list[range]:
        """The ranks without a recording, by the number of ranks that most members report."""
        size = usual_size(member.recording.run.world_size for member in self.members)
        return missing_ranges(self.ranks, size) if self.ranks else []

    def _order(self, recording: Recording, key: str) -> tuple[bool, int, int, str]:
        start = self.timeline[key].model.to_reference(np.array([recording.run.anchor.monotonic_ns], np.int64))
        rank = recording.run.rank
        return rank is None, rank or 0, int(start[0]), recording.id


def error_between(one: Member, one_at: int, other: Member, other_at: int) -> float:
    """The error bound of the distance between times of two members, in ns; 0 if they read one clock."""
    if one.clock == other.clock:
        return 0.0
    return one.error(one_at) + other.error(other_at)


class _Clock:
    """A clock, and the recordings that read it."""

    def __init__(self, name: str, first: Recording) -> None:
        self._name = name
        self._ahead = _ahead(first.run.anchor)
        self.recordings = [first]
        self._witnesses: list[Pieces] | None = None

    def shows(self, recording: Recording) -> bool:
        """Whether a recording can have this clock: by its name, its wall clock and its measurements."""
        run = recording.run
        if run.clock != self._name or abs(_ahead(run.anchor) - self._ahead) >= SAME_CLOCK_NS:
            return False
        if self._witnesses is None:
            self._witnesses = [pieces_by_clock(self.recordings[0].syncs)]
        pieces = pieces_by_clock(recording.syncs)
        if any(contradict(pieces, witness) for witness in self._witnesses):
            return False
        if len(self._witnesses) < WITNESSES:
            self._witnesses.append(pieces)
        return True


def _clocks(recordings: Sequence[Recording]) -> dict[str, list[Recording]]:
    """Recordings by the clock that they read; one whose clock has no name has its own.

    Names are what streams claim: one whose round trips contradict those of the others has a clock of its own.
    """
    named: dict[str, list[_Clock]] = {}
    clocks: dict[str, list[Recording]] = {}
    for recording in recordings:
        name = recording.run.clock
        if not name:
            clocks[f"stream {recording.id}"] = [recording]
            continue
        same_name = named.setdefault(name, [])
        clock = next((clock for clock in same_name if clock.shows(recording)), None)
        if clock is None:
            same_name.append(_Clock(name, recording))
        else:
            clock.recordings.append(recording)
    for name, several in named.items():
        clocks |= {f"{name} {number}": clock.recordings for number, clock in enumerate(several)}
    return clocks


def _ahead(anchor: ClockAnchor) -> int:
    return anchor.wall_ns - anchor.monotonic_ns

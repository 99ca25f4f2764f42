"""Groups the runs of a directory that has several: ranks of one job, and streams of one job in a collector's directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from stepscope.collector.runs.recording import journals_in, stream_of
from stepscope.exporters.stream.protocol import job_of
from stepscope.runtime.errors import FormatError
from stepscope.runtime.journal.records import RunRecord
from stepscope.runtime.recovery.journals import Journals, run_record_of
from stepscope.runtime.session.note import JOURNAL, WINDOWS

SAME_JOB_NS = 600 * 1_000_000_000
"""Ranks that begin farther apart are of different jobs."""


class Launch(msgspec.Struct):
    """Recordings that belong together: of one process, the ranks of one job, or the streams of one job in a collector's directory."""

    journals: list[Path]
    ranks: dict[int, str]
    """Ids of the runs of each rank, by its number."""
    began_ns: int
    """Unix time at which the last of its runs began."""
    job: str = ""
    world_size: int | None = None

    @property
    def place(self) -> Path:
        """The directory that has all of it, if it is not a collector's."""
        return Path(os.path.commonpath([run_directory(path) for path in self.journals]))

    def add(self, path: Path, run: RunRecord, began_ns: int) -> None:
        """Adds a journal."""
        self.journals.append(path)
        self.began_ns = max(self.began_ns, began_ns)
        if run.rank is not None:
            self.ranks[run.rank] = run.id

    def includes(self, run: RunRecord, began_ns: int) -> bool:
        """Whether a run is one of its ranks. The job's name alone does not show that: a shell in a batch system gives all its
        programs the same one."""
        return (
            run.rank is not None
            and len(self.ranks) > 0
            and self.ranks.get(run.rank, run.id) == run.id
            and (self.job, self.world_size) == (run.job, run.world_size)
            and began_ns - self.began_ns < SAME_JOB_NS
        )


def launches_in(place: Path) -> list[Launch]:
    """The runs in a directory and below, the newest last; in the directory of a run, that one.

    Raises:
        OSError: if a directory cannot be read.
    """
    found = list(_runs(place))
    found.sort(key=lambda each: (bool(stream_of(each[0])), each[2]))
    launches: list[Launch] = []
    of_runs: dict[str, Launch] = {}
    of_streams: dict[str, Launch] = {}
    for path, run, began_ns in found:
        launch = of_runs.get(run.id) if run.id else None
        if launch is None and stream_of(path):
            launch = of_streams.get(job_of(run))
        elif launch is None:
            launch = next((each for each in reversed(launches) if each.includes(run, began_ns)), None)
        if launch is None:
            job = job_of(run) if stream_of(path) else run.job
            launches.append(launch := Launch([], {}, began_ns, job, run.world_size))
        launch.add(path, run, began_ns)
        of_runs[run.id] = launch
        if stream_of(path):
            of_streams.setdefault(job_of(run), launch)
    return sorted(launches, key=lambda each: (place in map(run_directory, each.journals), each.began_ns))


def perhaps_newer(place: Path, launches: list[Launch]) -> list[Path]:
    """Journals in a directory and below that do not say whose they are, and were written after the newest run began."""
    known = {run_directory(path) for launch in launches for path in launch.journals}
    unknown = (path for path in journals_in(place) if run_directory(path) not in known)
    return [path for path in unknown if _modified(path) > launches[-1].began_ns]


def _modified(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:  # it is removed meanwhile, or the directory cannot be entered
        return 0


def run_directory(journal: Path) -> Path:
    """The directory of the run that wrote a journal."""
    return journal.parent.parent if journal.parent.name == WINDOWS else journal.parent


def _runs(place: Path) -> Iterator[tuple[Path, RunRecord, int]]:
    """The journals that say whose they are, of each directory the newest, with the time at which its run began, in Unix time."""
    for path in journals_in(place):
        try:
            own = path.name == JOURNAL and not stream_of(path)
            newest = Journals.of(path.parent).found[:1] if own else [(path, run_record_of(path))]
            for each, run in newest:
                if run is not None:
                    yield each, run, run.created_ns
        except (OSError, FormatError):
            continue  # reading the directory says why it cannot be used

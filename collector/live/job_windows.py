"""The windows of jobs, as their ranks' streams tell them: those of all ranks, and of all starts of each, together."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from stepscope.collector.live.stream import Stream
from stepscope.collector.live.streams import Rank
from stepscope.collector.live.views import RankWindow, WindowDetail, WindowView
from stepscope.collector.runs.places import Mark, places
from stepscope.collector.runs.windows import WindowFacts


class Row(msgspec.Struct, frozen=True):
    """A window of one start of a rank."""

    rank: str
    """Id of the rank."""
    start: int
    """1: its first."""
    again: bool
    """Whether an earlier start is known."""
    stream: Stream
    window: WindowFacts

    @property
    def mark(self) -> Mark:
        """What it says of itself."""
        first, last = self.window.first_step, self.window.last_step
        return self.window.index, None if first is None or last is None else (first, last)


class Group(msgspec.Struct, frozen=True):
    """A window of a job."""

    job: str
    index: int
    """The job's, as far as the collector remembers: a merge sees older windows, too."""
    rows: list[Row]
    """In order of rank and start."""

    @property
    def latest(self) -> list[Row]:
        """Of each rank the last start that has it."""
        return list({row.rank: row for row in self.rows}.values())


Marks = tuple[Counter[Mark], Counter[Mark]]
"""Windows of ranks' first starts, and of later ones."""


class Seen(msgspec.Struct):
    """Windows of a job as they are at one moment."""

    marks: Marks = msgspec.field(default_factory=lambda: (Counter(), Counter()))
    rows: list[Row] = []

    def groups(self, job: str) -> list[Group]:
        """These windows, those together that are one of the job."""
        placed = places(*self.marks)
        found: dict[int, list[Row]] = {}
        for row in self.rows:
            found.setdefault(placed[row.again, row.mark], []).append(row)
        return [Group(job, index, rows) for index, rows in found.items()]


def seen(ranks: Iterable[Rank], most: int, job: str | None = None) -> dict[str, Seen]:
    """The newest windows of each start of each rank, by job.

    Args:
        ranks: in the order in which they are to be told.
        most: of each start.
        job: of this one only.
    """
    found: dict[str, Seen] = {}
    for rank in ranks:
        for number, again, stream in _starts(rank, job):
            its = found.setdefault(stream.job, Seen())
            its.marks[again].update(stream.windows.marks())
            newest = itertools.islice(stream.windows, most)
            its.rows += [Row(rank.id, number, again, stream, window) for window in newest]
    return found


def find(ranks: Sequence[Rank], index: int, job: str | None) -> list[Group]:
    """The window of an index: of one job, or of each that has it."""
    marks: dict[str, Marks] = {}
    for rank in ranks:
        for _, again, stream in _starts(rank, job):
            marks.setdefault(stream.job, (Counter(), Counter()))[again].update(stream.windows.marks())
    wanted = {name: {mark for mark, place in places(*its).items() if place == index} for name, its in marks.items()}
    groups = {name: Group(name, index, []) for name in marks}
    for rank in ranks:
        for number, again, stream in _starts(rank, job):
            these = {mark for later, mark in wanted[stream.job] if later == again}
            if these.isdisjoint(stream.windows.marks()):
                continue
            rows = (Row(rank.id, number, again, stream, window) for window in stream.windows)
            groups[stream.job].rows.extend(row for row in rows if row.mark in these)
    return [group for group in groups.values() if group.rows]


def window_detail(group: Group) -> WindowDetail:
    """A window, rank by rank."""
    rows = [RankWindow(rank=row.rank, start=row.start, stream=row.stream.id, window=row.window) for row in group.rows]
    return WindowDetail(window=_window(group), ranks=rows)


def newest(found: dict[str, Seen], most: int) -> list[WindowView]:
    """The newest of the windows that were seen, by job, the newest first."""
    views = [_window(group) for job, its in found.items() for group in its.groups(job)]
    return sorted(views, key=lambda view: (view.started_ns, view.index), reverse=True)[:most]


def _window(group: Group) -> WindowView:
    windows, latest = [row.window for row in group.rows], [row.window for row in group.latest]
    return WindowView(
        job_id=group.job,
        index=group.index,
        started_ns=min(row.window.start_ns + row.stream.clock.offset_ns for row in group.rows),
        ranks=len(latest),
        open=sum(window.open for window in latest),
        incomplete=sum(not window.open and not window.complete for window in latest),
        steps=max(window.steps for window in windows),
        events=sum(window.events for window in windows),
        dropped=sum(window.dropped for window in windows),
        partly_evicted=sum(window.partly_evicted for window in latest),
    )


def _starts(rank: Rank, job: str | None) -> Iterator[tuple[int, bool, Stream]]:
    """The starts of a rank that are of a job: the number of each, and whether an earlier one is known."""
    for number, stream in rank.starts():
        if job is None or stream.job == job:
            yield number, stream is not rank.streams[0], stream

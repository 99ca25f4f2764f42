"""The windows of jobs: those of all ranks, and of all starts of each rank, together."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from stepscope.collector.live.stream import Stream
from stepscope.collector.live.streams import Rank
from stepscope.collector.live.views import RankWindow, WindowDetail, WindowView
from stepscope.collector.runs.windows import Mark, WindowFacts, places


class Start(NamedTuple):
    """One start of a rank."""

    rank: str
    """Id of the rank."""
    number: int
    """Number of the start, from 1."""
    restarted: bool
    """Whether an earlier start is known."""
    stream: Stream


class Row(msgspec.Struct, frozen=True, gc=False):
    """A window of one start of a rank."""

    start: Start
    mark: Mark
    window: WindowFacts


class Group(msgspec.Struct, frozen=True):
    """A window of a job."""

    job: str
    index: int
    """Index of the window in the job, as far as the collector remembers: a merge sees older windows, too."""
    rows: list[Row]
    """Rows in the order of ranks and starts."""

    @property
    def latest(self) -> list[Row]:
        """The row of each rank's last start that has the window."""
        return list({row.start.rank: row for row in self.rows}.values())


Marks = tuple[Counter[Mark], Counter[Mark]]
"""Windows of ranks' first starts, and of later ones."""


def starts_of(ranks: Iterable[Rank], job: str | None = None) -> Iterator[Start]:
    """The starts of ranks, in their order; of one job, or of all."""
    for rank in ranks:
        for number, stream in rank.starts():
            if job is None or stream.job == job:
                yield Start(rank.id, number, number > rank.forgotten + 1, stream)


def newest(starts: Iterable[Start], most: int, now_ns: int) -> list[WindowView]:
    """The newest windows of all, the newest first. For a thread of its own: of 10,000 ranks it takes a second.

    Args:
        starts: whose.
        most: how many of all, and of each start.
        now_ns: Unix time.
    """
    jobs: dict[str, tuple[Marks, list[Row]]] = {}
    for start in starts:
        marks, rows = jobs.setdefault(start.stream.job, ((Counter(), Counter()), []))
        windows = start.stream.windows.newest()
        marks[start.restarted].update([mark for mark, _ in reversed(windows)])
        rows += [Row(start, mark, window) for mark, window in windows[:most]]
    views: list[WindowView] = []
    for job, (marks, rows) in jobs.items():
        placed = places(*marks)
        found: dict[int, list[Row]] = {}
        for row in rows:
            found.setdefault(placed[row.start.restarted, row.mark], []).append(row)
        views += [_window(Group(job, index, its), now_ns) for index, its in found.items()]
    return sorted(views, key=lambda view: (view.started_ns, view.index), reverse=True)[:most]


def find(starts: Iterable[Start], index: int) -> list[Group]:
    """Finds the windows of an index, one of each job that has it. For a thread of its own."""
    windows = [(start, start.stream.windows.newest()) for start in starts]
    marks: dict[str, Marks] = {}
    for start, its in windows:
        counters = marks.setdefault(start.stream.job, (Counter(), Counter()))
        counters[start.restarted].update([mark for mark, _ in reversed(its)])
    wanted = {
        (job, *place) for job, counters in marks.items() for place, found in places(*counters).items() if found == index
    }
    groups = {job: Group(job, index, []) for job in marks}
    for start, its in windows:
        job, again = start.stream.job, start.restarted
        groups[job].rows.extend(Row(start, mark, window) for mark, window in its if (job, again, mark) in wanted)
    return [group for group in groups.values() if group.rows]


def window_detail(group: Group) -> WindowDetail:
    """A window, rank by rank."""
    rows = [
        RankWindow(rank=row.start.rank, start=row.start.number, stream=row.start.stream.id, window=row.window)
        for row in group.rows
    ]
    return WindowDetail(window=_window(group, time.time_ns()), ranks=rows)


def _window(group: Group, now_ns: int) -> WindowView:
    windows, latest = [row.window for row in group.rows], [row.window for row in group.latest]
    # One rank whose clock is wrong must not move the window to where nobody looks for it.
    begins = sorted(min(max(row.window.start_ns + row.start.stream.clock.offset_ns, 0), now_ns) for row in group.rows)
    return WindowView(
        job_id=group.job,
        index=group.index,
        started_ns=begins[len(begins) // 2],
        ranks=len(latest),
        open=sum(window.open for window in latest),
        incomplete=sum(not window.open and not window.complete for window in latest),
        steps=max(window.steps for window in windows),
        events=sum(window.events for window in windows),
        dropped=sum(window.dropped for window in windows),
        partly_evicted=sum(window.partly_evicted for window in latest),
    )

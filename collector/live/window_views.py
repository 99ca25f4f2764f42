"""Views of the windows of jobs."""

from __future__ import annotations

from stepscope.collector.live.job_windows import Group, Seen
from stepscope.collector.live.views import RankWindow, WindowDetail, WindowView


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
        # Not `clock.now`, which fits the clock: this runs on a thread, and the loop adds to it meanwhile.
        started_ns=min(row.window.start_ns + row.stream.clock.offset_ns for row in group.rows),
        ranks=len(latest),
        open=sum(window.open for window in latest),
        incomplete=sum(not window.open and not window.complete for window in latest),
        steps=max(window.steps for window in windows),
        events=sum(window.events for window in windows),
        dropped=sum(window.dropped for window in windows),
        discarded=sum(window.discarded for window in windows),
    )

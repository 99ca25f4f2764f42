"""The order in which segments are evicted when there is not room for all."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable
from pathlib import Path
from typing import Annotated

import msgspec

from stepscope.collector.retention.inventory import Segment, SegmentWindow, StoredStream
from stepscope.collector.runs.windows import Mark, places
from stepscope.runtime.settings.checked import Checked

Count = Annotated[int, msgspec.Meta(ge=0)]

UNPROTECTED, SLOWEST, NEWEST, LAST = range(4)
"""Classes of segments. Lower ones are evicted first, and those of the last one are not evicted."""

Order = tuple[int, int]
"""A class, and the order within it."""


class StoragePolicy(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Says which windows are evicted last. Unknown fields are refused."""

    max_bytes: Count = 0
    """Bytes on disk of everything that the collector writes; 0: no limit."""
    newest: Count = 8
    """Closed windows of the newest time; their segments are evicted last."""
    slowest: Count = 8
    """Closed windows whose steps were the slowest, by the mean on the slowest rank; their segments are evicted before those of
    the newest windows, and after all others."""

    @property
    def slack(self) -> int:
        """When fewer bytes than these are free, segments are evicted until twice as many are."""
        return self.max_bytes // 16


class Candidate(msgspec.Struct, frozen=True):
    """A segment that may be evicted."""

    stream: StoredStream
    segment: Segment
    order: Order
    uploaded: bool
    """Whether it is in the store, if everything is uploaded to one."""
    last: bool
    """Whether it is the last segment of its stream."""


def candidates(
    streams: Collection[StoredStream], policy: StoragePolicy, uploaded: Callable[[Path], bool] | None = None
) -> list[Candidate]:
    """The segments that are not written any more, in the order in which they are to be evicted; those of the class `LAST` are not.

    First come those without a protected window, the oldest first; then those with one of the slowest windows, then those with
    one of the newest, but for the very newest of a stream that is over. The last segment of a stream comes after all others of it.

    Args:
        uploaded: whether a segment is in the store; those that are not come after those that are.
    """
    protected = _protected(streams, policy)
    found: list[Candidate] = []
    for stream in streams:
        windows = protected[stream.id]
        latest, whole = (UNPROTECTED, 0), True
        for segment in stream.segments:
            order = max(
                [(UNPROTECTED, segment.last_ns), *(windows[one] for one in segment.windows_among(windows.keys()))]
            )
            there = uploaded is None or uploaded(segment.file.path)
            latest, whole = max(latest, order), whole and there
            last = stream.over and segment is stream.segments[-1]
            found.append(Candidate(stream, segment, latest if last else order, whole if last else there, last))
    found.sort(key=lambda one: (not one.uploaded, one.order, one.last, one.segment.last_ns, one.segment.file.number))
    return found


def _protected(streams: Iterable[StoredStream], policy: StoragePolicy) -> defaultdict[str, dict[int, Order]]:
    """The class of each protected window of each stream."""
    by_begin = sorted(streams, key=lambda stream: stream.begin_ns)
    by_rank: defaultdict[Hashable, list[str]] = defaultdict(list)
    for stream in by_begin:
        by_rank[stream.id if stream.rank is None else (stream.job, stream.rank)].append(stream.id)
    replaced = {id for starts in by_rank.values() for id in starts[:-1]}
    # Where something newer is, in the segment that is written or in a later start of the rank, that is the very newest.
    final = {stream.id for stream in by_begin if stream.over} - replaced
    groups = _groups(by_begin)
    groups.sort(key=lambda group: max(window.end_ns or 0 for _, window in group))
    newest = groups[max(len(groups) - policy.newest, 0) :]
    by_pace = sorted(groups, key=lambda group: max(window.step_ns for _, window in group))
    slowest = by_pace[max(len(groups) - policy.slowest, 0) :]
    found: defaultdict[str, dict[int, Order]] = defaultdict(dict)
    for kind, chosen in ((SLOWEST, slowest), (NEWEST, newest), (LAST, newest[-1:])):
        for at, group in enumerate(chosen):
            for stream_id, window in group:
                if kind < LAST or stream_id in final:
                    found[stream_id][window.index] = kind, at
    return found


def _groups(by_begin: Iterable[StoredStream]) -> list[list[tuple[str, SegmentWindow]]]:
    """The windows of all streams that have ended on some rank; those together that are one window of several ranks of a job."""
    seen = set[Hashable]()
    later = set[str]()
    """Streams of ranks that were started again."""
    marks: defaultdict[str, tuple[Counter[Mark], Counter[Mark]]] = defaultdict(lambda: (Counter(), Counter()))
    for stream in by_begin:
        if stream.rank is not None and (stream.job, stream.rank) in seen:
            later.add(stream.id)
        seen.add((stream.job, stream.rank))
        marks[stream.job][stream.id in later].update(window.mark for window in stream.windows())
    placed = {job: places(*its) for job, its in marks.items()}
    groups: defaultdict[Hashable, list[tuple[str, SegmentWindow]]] = defaultdict(list)
    for stream in by_begin:
        again = stream.id in later
        for window in stream.windows():
            # A window of a later start belongs to one of the job by its steps only.
            own = not stream.job or (again and window.steps is None)
            key = (stream.id, window.index) if own else (stream.job, placed[stream.job][again, window.mark])
            groups[key].append((stream.id, window))
    return [group for group in groups.values() if any(window.end_ns is not None for _, window in group)]

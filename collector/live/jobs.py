"""The jobs at one moment, and the ranks that are missing in them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from stepscope.collector.live.streams import Rank
from stepscope.collector.live.views import JobEntry, RankView

MOST_JOBS = 200
"""That are offered to be chosen."""
_MOST_ABSENT = 100


def expected(ranks: Iterable[Rank]) -> tuple[int | None, list[int]]:
    """How many ranks there should be, and which of them were never seen, the first of each job."""
    jobs: dict[str, list[Rank]] = {}
    for rank in ranks:
        jobs.setdefault(rank.latest.job, []).append(rank)
    size, absent = 0, set[int]()
    for its in jobs.values():
        numbers = {rank.latest.run.rank for rank in its}
        most = max((rank.latest.run.world_size or 0 for rank in its), default=0)
        missing = (number for number in range(most) if number not in numbers)
        size += most
        absent.update(itertools.islice(missing, _MOST_ABSENT))
    return size or None, sorted(absent)[:_MOST_ABSENT]


def entries(ranks: Iterable[Rank], views: Iterable[RankView]) -> list[JobEntry]:
    """The jobs that can be chosen, by their ids: if there are very many, those of which something came last.

    Args:
        ranks: all that are known.
        views: what is told of them.
    """
    seen: dict[str, float] = {}
    for rank in ranks:
        for stream in rank.streams:
            seen[stream.job] = max(seen.get(stream.job, stream.seen), stream.seen)
    latest = sorted(seen, key=lambda job: -seen[job])[:MOST_JOBS]
    its: dict[str, list[RankView]] = {job: [] for job in latest}
    for view in views:
        if view.job_id in its:
            its[view.job_id].append(view)
    return [_entry(job, its[job]) for job in sorted(its)]


def _entry(job: str, views: Sequence[RankView]) -> JobEntry:
    states = [view.state for view in views]
    return JobEntry(
        id=job,
        ranks=len(views),
        connected=states.count("connected"),
        died=states.count("died"),
        slow=sum(view.slow for view in views),
    )

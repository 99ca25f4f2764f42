"""The ranks of jobs at one moment: who is slow, who is missing, and which jobs there are."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from stepscope.collector.live.rank_views import Pace, Times
from stepscope.collector.live.slowest import FEWEST, slowest
from stepscope.collector.live.stream import State
from stepscope.collector.live.streams import Rank
from stepscope.collector.live.views import JobEntry, RankView, SlowRank

MOST_JOBS = 200
"""That are offered to be chosen."""
_MOST_ABSENT = 100


def slow_ranks(paces: Sequence[Pace]) -> list[SlowRank]:
    """Those who hold the others of their job up, the slowest first; who has died is not looked at."""
    found: list[SlowRank] = []
    jobs: dict[str, list[Pace]] = {}
    for pace in paces:
        jobs.setdefault(pace.rank.latest.job, []).append(pace)
    for its in jobs.values():
        runs = {pace.rank.id: pace.rank.latest.run for pace in its}
        times, own = comparable([pace for pace in its if pace.state is not State.DIED])
        found += [
            SlowRank(
                id=one.id,
                rank=runs[one.id].rank,
                host=runs[one.id].host[:200],
                step_ms=round(one.median, 3),
                others_ms=round(one.others, 3),
                factor=round(min(one.factor, 1e6), 2),
                own=own,
            )
            for one in slowest(times)
        ]
    return sorted(found, key=lambda one: -one.step_ms)


def comparable(paces: Sequence[Pace]) -> tuple[dict[str, Times], bool]:
    """The times in ms by which ranks are compared: without collectives if these are known of each, else whole steps.

    Returns:
        Times of each rank with enough steps, and whether they are without collectives.
    """
    judged = [pace for pace in paces if len(pace.ms) >= FEWEST]
    own = any(pace.communicates for pace in judged) and all(len(pace.own_ms) >= FEWEST for pace in judged)
    return {pace.rank.id: pace.own_ms if own else pace.ms for pace in judged}, own


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
        slow=sum(view.slow_factor is not None for view in views),
    )

"""Views of ranks and jobs at one moment: states, starts, and ranks that are missing."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from stepscope.collector.live.step_times import SHOWN, communicates, median
from stepscope.collector.live.stream import State, Stream
from stepscope.collector.live.streams import Rank
from stepscope.collector.live.views import JobEntry, RankView, StreamView
from stepscope.runtime.session.ranks import usual_size

MOST_JOBS = 200
"""That are offered to be chosen."""
_MOST_ABSENT = 100
_MOST_OTHERS = 8


def rank_view(rank: Rank, now: float, *, slow: bool) -> RankView:
    """A rank at one moment.

    Args:
        rank: the rank.
        now: a monotonic time in seconds.
        slow: whether it holds the others up.
    """
    stream = rank.latest
    steps = stream.steps.newest(SHOWN)
    own_ms = steps["own_ms"][steps["own_ms"] >= 0]
    run, state, shares = stream.run, stream.state(now), stream.shares
    return RankView(
        id=rank.id,
        job=run.name[:200],
        job_id=stream.job,
        rank=run.rank,
        host=run.host[:200],
        pid=run.pid,
        state=state.value,
        silent_s=0.0 if state in (State.ENDED, State.CONNECTED) else round(now - stream.seen, 1),
        incarnation=rank.count,
        stream=stream.id,
        step=stream.steps.last,
        step_ms=_median(steps["ms"]),
        own_ms=_median(own_ms) if communicates(steps) else None,
        last_step_ms=round(float(steps["ms"][-1]), 3) if len(steps) else None,
        events=stream.events,
        events_per_s=round(stream.event_rate.per_second(now), 1),
        bytes=stream.bytes,
        bytes_per_s=round(stream.byte_rate.per_second(now), 1),
        dropped=stream.lost,
        missing_frames=stream.missing,
        clock_bound_us=None if (bound := stream.clock.bound_ns) is None else round(bound / 1e3, 1),
        windows=stream.windows.count,
        slow=slow,
        cpu_share=shares.cpu,
        data_share=shares.data,
        communication_share=shares.communication,
        resident_bytes=shares.resident_bytes,
        restoring=stream.restoring,
        others=[f"{one.run.host[:200]} (pid {one.run.pid})" for one in rank.others[:_MOST_OTHERS]],
    )


def start_views(rank: Rank, now: float) -> list[StreamView]:
    """The starts of a rank, the latest first."""
    return [_start(number, stream, now) for number, stream in rank.starts()][::-1]


def expected(latest: Iterable[Stream]) -> tuple[int | None, list[int]]:
    """How many ranks there should be, and which of them were never seen, the first of each job.

    Args:
        latest: the latest stream of each rank.
    """
    jobs: dict[str, list[Stream]] = {}
    for stream in latest:
        jobs.setdefault(stream.job, []).append(stream)
    size, absent = 0, set[int]()
    for its in jobs.values():
        numbers = {stream.run.rank for stream in its}
        most = usual_size(stream.run.world_size for stream in its)
        missing = (number for number in range(most) if number not in numbers)
        size += most
        absent.update(itertools.islice(missing, _MOST_ABSENT))
    return size or None, sorted(absent)[:_MOST_ABSENT]


def entries(ranks: Iterable[Rank], views: Iterable[RankView]) -> list[JobEntry]:
    """The jobs that can be chosen, by their ids: if there are very many, those of which something came last.

    Args:
        ranks: all that are known.
        views: their states.
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


def _start(number: int, stream: Stream, now: float) -> StreamView:
    return StreamView(
        stream=stream.id,
        start=number,
        state=stream.state(now).value,
        host=stream.run.host,
        pid=stream.run.pid,
        seen_first_ns=stream.born_ns,
        events=stream.events,
        bytes=stream.bytes,
        dropped=dict(stream.dropped),
        missing_frames=stream.missing,
        undecodable_frames=stream.undecodable,
        evicted_segments=len(stream.windows.evicted),
        evicted_events=stream.windows.discarded,
        evicted_bytes=stream.windows.discarded_bytes,
        windows=list(stream.windows),
    )


def _median(times: NDArray[np.float32]) -> float | None:
    return round(median(times), 3) if len(times) else None

"""Views of a rank: its state, and its starts."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.collector.live.slowest import STEPS, median
from stepscope.collector.live.step_times import communicates
from stepscope.collector.live.stream import State, Stream
from stepscope.collector.live.streams import Rank
from stepscope.collector.live.views import RankView, SlowRank, StreamView

_MOST_OTHERS = 8

Times = NDArray[np.float32]
"""In ms."""


class Pace(msgspec.Struct, frozen=True):
    """A rank's newest steps at one moment."""

    rank: Rank
    state: State
    ms: Times
    own_ms: Times
    """The time in which it was not in collectives, of the steps of which that is known."""
    communicates: bool
    """Whether any of them was in a collective."""


def pace(rank: Rank, now: float) -> Pace:
    """Looks at a rank, at a monotonic time in seconds."""
    stream = rank.latest
    steps = stream.steps.newest(STEPS)
    with_own_time = steps[steps["own_ms"] >= 0]
    return Pace(rank, stream.state(now), steps["ms"], with_own_time["own_ms"], communicates(steps))


def rank_view(found: Pace, now: float, slow: SlowRank | None) -> RankView:
    """A rank as it is told.

    Args:
        found: what was seen of it.
        now: a monotonic time in seconds.
        slow: how it holds the others up, if it does.
    """
    rank, stream = found.rank, found.rank.latest
    run, state, shares = stream.run, found.state, stream.shares
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
        step_ms=_median(found.ms),
        own_ms=_median(found.own_ms) if found.communicates else None,
        last_step_ms=round(float(found.ms[-1]), 3) if len(found.ms) else None,
        events=stream.events,
        events_per_s=round(stream.event_rate.per_second(now), 1),
        bytes=stream.bytes,
        bytes_per_s=round(stream.byte_rate.per_second(now), 1),
        dropped=stream.lost,
        missing_frames=stream.missing,
        clock_bound_us=None if (bound := stream.clock.bound_ns) is None else round(bound / 1e3, 1),
        windows=stream.windows.count,
        slow_factor=None if slow is None else slow.factor,
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
        windows=list(stream.windows),
    )


def _median(times: Times) -> float | None:
    return round(median(times), 3) if len(times) else None

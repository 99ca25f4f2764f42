"""What is told of a rank: how it is now, and its starts."""

from __future__ import annotations

import msgspec

from stepscope.collector.live.slowest import STEPS, median
from stepscope.collector.live.stream import State, Stream
from stepscope.collector.live.streams import Rank
from stepscope.collector.live.stretches import Times
from stepscope.collector.live.views import RankView, SlowRank, StreamView

_MOST_OTHERS = 8


class Pace(msgspec.Struct, frozen=True):
    """A rank's newest steps at one moment."""

    rank: Rank
    state: State
    durations: Times
    """In ns."""
    own: Times
    """What of them it did not wait for others, of those of which that is known."""


def pace(rank: Rank, now: float) -> Pace:
    """Looks at a rank, at a monotonic time in seconds."""
    stream = rank.latest
    _, starts, durations = stream.steps.newest(STEPS)
    return Pace(rank, stream.state(now), durations, stream.waiting.own(starts, durations))


def rank_view(found: Pace, now: float, slow: SlowRank | None) -> RankView:
    """A rank as it is told.

    Args:
        found: what was seen of it.
        now: a monotonic time in seconds.
        slow: how it holds the others up, if it does.
    """
    rank, stream = found.rank, found.rank.latest
    run, state, durations = stream.run, found.state, found.durations
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
        step_ms=_median(durations),
        own_ms=_median(found.own),
        last_step_ms=round(float(durations[-1]) / 1e6, 3) if len(durations) else None,
        events=stream.events,
        events_per_s=round(stream.event_rate.per_second(now), 1),
        bytes=stream.bytes,
        bytes_per_s=round(stream.byte_rate.per_second(now), 1),
        dropped=stream.lost,
        missing_frames=stream.missing,
        clock_bound_us=None if (bound := stream.clock.now.bound_ns) is None else round(bound / 1e3, 1),
        windows=stream.windows.count,
        slow_factor=None if slow is None else slow.factor,
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
    """In ms."""
    return round(median(times) / 1e6, 3) if len(times) else None

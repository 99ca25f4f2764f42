"""Finds ranks that run and end no more steps: all of a job, as in a deadlock of their collectives, or some."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from stepscope.collector.live.step_times import SHOWN
from stepscope.collector.live.stream import State, Stream
from stepscope.collector.live.views import LiveFinding
from stepscope.runtime.display.text_table import human_time, printable, shorten
from stepscope.runtime.session.ranks import ranks_text

LEAST_S = 30.0
"""Seconds without a step that are no finding yet."""
USUAL_STEPS = 20
"""Nor are so many times the usual step, by the median."""
LONGEST_STEPS = 2
"""Nor are so many times the longest of the newest steps, such as one with an evaluation."""
LATE_S = 10.0
"""Seconds since another rank has ended a step after which one that has not is late, if others are ahead."""
BEHIND_STEPS = 10
"""Steps that others must be ahead of a rank that is late, or has stopped alone: when all go on, some say so first."""

MOST_NAME = 60
"""Characters of a run's name."""


class Stopped(msgspec.Struct, frozen=True):
    """Ranks that run and have ended no step for much longer than their steps take."""

    streams: list[Stream]
    usual_ms: float = 0.0
    """Median time of their steps."""
    limit_s: float = 0.0
    """None of them has ended a step for at least so many seconds."""


def running(streams: Iterable[Stream], now: float) -> list[Stream]:
    """Returns the ranks that run."""
    return [stream for stream in streams if stream.state(now) in (State.CONNECTED, State.SILENT)]


def without_late(streams: Sequence[Stream]) -> list[Stream]:
    """Returns the ranks that are not behind the others. All have runs of one name."""
    newest = max((stream.steps_at for stream in streams), default=0.0)
    latest = _latest(streams)
    return [one for one in streams if newest - one.steps_at < LATE_S or not _is_behind(one, latest)]


def stopped_of(streams: Sequence[Stream], now: float) -> Stopped:
    """Finds the ranks whose steps have stopped.

    Args:
        streams: of ranks that run, of the runs of one name in a job, with summaries.
        now: a monotonic time in seconds.
    """
    late = [stream for stream in streams if now - stream.steps_at >= LEAST_S]
    times = np.concatenate([stream.steps.newest(SHOWN)["ms"] for stream in late]) if late else np.zeros(0)
    if not len(times):
        return Stopped([])
    usual_ms = float(np.median(times))
    limit_s = max(LEAST_S, USUAL_STEPS * usual_ms / 1e3, LONGEST_STEPS * float(times.max()) / 1e3)
    stopped = [stream for stream in late if now - stream.steps_at >= limit_s]
    if len(stopped) < len(streams):
        latest = _latest(streams)
        stopped = [stream for stream in stopped if _is_behind(stream, latest)]
    return Stopped(stopped, usual_ms, limit_s)


def _is_behind(stream: Stream, latest: int) -> bool:
    return (stream.steps.last or 0) + BEHIND_STEPS <= latest


def _latest(streams: Iterable[Stream]) -> int:
    return max((stream.steps.last or 0 for stream in streams), default=0)


def finding_of(stopped: Stopped, streams: Sequence[Stream]) -> LiveFinding | None:
    """The finding, if a window is open. Between windows no step is recorded. Of ranks whose frames another collector gets, it is not known
    whether a window is open.

    Args:
        stopped: those of `streams` that have stopped.
        streams: of ranks that run.
    """
    open = [stream for stream in stopped.streams if stream.windows.is_open]
    if not open:
        return None
    all_stopped = len(stopped.streams) == len(streams)
    behind = _behind(streams) if all_stopped else open
    ranks = sorted(stream.run.rank for stream in behind if stream.run.rank is not None)
    run = (behind or streams)[0].run
    name = printable(shorten(run.name, MOST_NAME))
    several = len(ranks) > 1
    who = f"{'Ranks' if several else 'Rank'} {ranks_text(ranks)}" if ranks else "A process"
    evidence = [f"a step of {name} usually takes {human_time(stopped.usual_ms * 1e6)}, and the processes still run"]
    for_long = f"for {human_time(stopped.limit_s * 1e9)} or longer"
    if all_stopped:
        title = f"No step has ended {for_long}: the job hangs, or does something that is no step."
    else:
        title = f"{who} {'have' if several else 'has'} ended no step {for_long}, and the others go on."
        evidence.append(f"the others are compared without {'them' if several else 'it'}")
    if all_stopped and ranks:
        evidence.append(
            f"{who.lower()} {'are' if several else 'is'} behind: the others have ended step {_latest(streams):,}, and may wait for {'them' if several else 'it'}"
        )
    return LiveFinding(
        id="steps-stopped",
        title=title,
        evidence=evidence,
        action=f"see where it is: py-spy dump --pid {run.pid} on {run.host}",
        gain="",
        cost=1.0,
        certainty="possible",
        ranks=ranks,
        steps=[],
    )


def _behind(streams: Sequence[Stream]) -> list[Stream]:
    """Ranks for which the others may wait; none if they are most."""
    latest = _latest(streams)
    behind = [stream for stream in streams if (stream.steps.last or 0) < latest]
    return behind if 2 * len(behind) <= len(streams) else []

"""Finds a job whose ranks run and end no more steps, as in a deadlock of their collectives."""

from __future__ import annotations

from collections.abc import Sequence

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

MOST_NAME = 60
"""Characters of a run's name."""


def stopped_steps(streams: Sequence[Stream], now: float) -> LiveFinding | None:
    """The finding, if no rank has ended a step for much longer than its steps take, although a window is open. Between windows no step is
    recorded. Of ranks whose frames another collector gets, it is not known whether a window is open.

    Args:
        streams: of the runs of one name in a job, with summaries.
        now: a monotonic time in seconds.
    """
    running = [stream for stream in streams if stream.state(now) in (State.CONNECTED, State.SILENT)]
    if not any(stream.windows.is_open for stream in running):
        return None
    waited_s = now - max((stream.steps_at for stream in running), default=now)
    if waited_s < LEAST_S:
        return None
    times = np.concatenate([stream.steps.newest(SHOWN)["ms"] for stream in running])
    if not len(times):
        return None
    usual_ms = float(np.median(times))
    limit_s = max(LEAST_S, USUAL_STEPS * usual_ms / 1e3, LONGEST_STEPS * float(times.max()) / 1e3)
    if waited_s < limit_s:
        return None
    latest = max(stream.steps.last or 0 for stream in running)
    behind = [stream for stream in running if (stream.steps.last or 0) < latest]
    behind = behind if 2 * len(behind) <= len(running) else []
    ranks = sorted(stream.run.rank for stream in behind if stream.run.rank is not None)
    run = (behind or running)[0].run
    name = printable(shorten(run.name, MOST_NAME))
    evidence = [f"a step of {name} usually takes {human_time(usual_ms * 1e6)}, and the processes still run"]
    if ranks:
        are = "ranks {} are" if len(ranks) > 1 else "rank {} is"
        evidence.append(
            f"{are.format(ranks_text(ranks))} behind: the others have ended step {latest:,}, and may wait for {'them' if len(ranks) > 1 else 'it'}"
        )
    return LiveFinding(
        id="steps-stopped",
        title=f"No step has ended for {human_time(limit_s * 1e9)} or longer: the job hangs, or does something that is no step.",
        evidence=evidence,
        action=f"see where it is: py-spy dump --pid {run.pid} on {run.host}",
        gain="",
        cost=1.0,
        certainty="possible",
        ranks=ranks,
        steps=[],
    )

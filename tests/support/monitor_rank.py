"""A rank of a job under `DynamicProfilerMonitor`, whose loops go at different speeds.

    python -m tests.support.monitor_rank '{"directory": ..., "rank": 0, "world": 4, ...}'

The loop ends when the file `stop` is there. Ranks keep together, none is more than `LEAD` steps ahead of the slowest.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from pathlib import Path

import msgspec

from stepscope.mindspore import DynamicProfilerMonitor
from tests.support.control_rank import GONE, RankSettings, Steps

LEAD = 10


class MonitorSettings(RankSettings, kw_only=True):
    """The configuration of a rank."""

    poll: float = 0.5
    sink: int = 1
    """Steps between two calls of the callback; 1: `step()` is called."""


class Context:
    """The argument of a framework's callbacks."""

    cur_step_num = 0

    def original_args(self) -> Context:
        """Itself."""
        return self


def main(settings: MonitorSettings) -> None:
    """Runs the loop."""
    logging.basicConfig(level=logging.INFO, format=f"{settings.rank} %(message)s")
    directory = Path(settings.directory)
    steps = Steps(directory / "steps", settings.world)
    time.sleep(settings.late)
    os.environ.update(RANK=str(settings.rank), WORLD_SIZE=str(settings.world), STEPSCOPE_JOB="job")
    monitor = DynamicProfilerMonitor(
        directory / "cfg", directory / "out", settings.poll, granularity=settings.sink, late="refuse"
    )
    (directory / f"ready-{settings.rank}").touch()
    stop, context, step = directory / "stop", Context(), 0
    while not stop.exists():
        step += settings.sink
        context.cur_step_num = step
        if settings.sink > 1:
            monitor.step_begin(context)
        time.sleep(settings.step_ms * settings.sink / 1000)
        if settings.sink > 1:
            monitor.step_end(context)
        else:
            monitor.step()
        steps.put(settings.rank, step)
        while steps.least() + max(LEAD, settings.sink) < step and not stop.exists():
            time.sleep(0.001)
    steps.put(settings.rank, GONE)
    monitor.close()
    print(json.dumps({"rank": settings.rank, "steps": step}))


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=MonitorSettings))

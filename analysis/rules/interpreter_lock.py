"""Threads that hold the interpreter's lock."""

from __future__ import annotations

from collections import Counter

import numpy as np

from stepscope.analysis.findings import Finding
from stepscope.analysis.measures.evidence import steps_with_most
from stepscope.analysis.measures.job import Job
from stepscope.analysis.tables.rank_summary import durations
from stepscope.analysis.thresholds import FEWEST_SAMPLES, FINDING, OTHER_THREAD
from stepscope.runtime.display.text_table import human_time

WAITING_IN = ("/threading.py", "/queue.py", "/selectors.py", "/socket.py")
"""Ends of the files in whose functions a thread waits without the lock."""


def is_waiting(other: str) -> bool:
    """Whether a thread that ran since the sample before waits now.

    Args:
        other: its name and what it is in, `name: function (file:line)`.
    """
    return other.rpartition(":")[0].endswith(WAITING_IN)


def check(job: Job) -> list[Finding]:
    """Finds another thread that runs Python while the thread that steps does not run."""
    rank = job.main
    samples = rank.samples_in_steps()
    if len(samples) < FEWEST_SAMPLES:
        return []
    others = Counter(sample.other for sample in samples if sample.other and not is_waiting(sample.other))
    if not others:
        return []
    share = others.total() / len(samples)
    took = float(durations(rank.judged_steps).sum())
    cpu = float(np.nansum(rank.judged_steps["cpu_ns"])) if np.isfinite(rank.judged_steps["cpu_ns"]).any() else took
    idle = max(0.0, 1.0 - cpu / took)
    cost = min(share, idle)
    if share < OTHER_THREAD or cost < FINDING:
        return []
    name, count = others.most_common(1)[0]
    return [
        Finding(
            id="interpreter-lock",
            title=f"Another thread holds Python's interpreter lock (GIL): {name.partition(':')[0]}.",
            cost=cost,
            cost_ns=cost * rank.step_ns,
            evidence=(
                f"in {share:.0%} of the stack samples another thread of this process runs Python; in {count / len(samples):.0%} it is {name}",
                f"the thread that steps is on a processor {cpu / took:.0%} of the time",
            ),
            action="move that work to another process (multiprocessing), to native code that releases the lock, or out of the training",
            gain=f"up to {human_time(cost * rank.step_ns)} of each step",
            certainty="likely",
            steps=steps_with_most(
                rank.judged_steps, durations(rank.judged_steps) - np.nan_to_num(rank.judged_steps["cpu_ns"])
            ),
        )
    ]

"""Tasks of asyncio that pile up."""

from __future__ import annotations

from collections import Counter

import numpy as np

from stepscope.analysis.findings import Finding
from stepscope.analysis.measures.event_loop import length_of
from stepscope.analysis.measures.evidence import longest
from stepscope.analysis.measures.job import Job
from stepscope.analysis.thresholds import AT_THE_END, FEWEST_OPEN_TASKS, MAJORITY


def check(job: Job) -> list[Finding]:
    """Finds tasks of one name that are open at the end, though they began evenly over the run."""
    rank = max(job.ranks, key=lambda each: len(each.tasks))
    if len(rank.tasks) < FEWEST_OPEN_TASKS:
        return []
    end = max(task.ts + task.dur for task in rank.tasks)
    # asyncio.run cancels at its end what is still there.
    late = end - AT_THE_END * length_of(rank.tasks)
    open_tasks = [task for task in rank.tasks if task.open or task.ts + task.dur > late]
    opened = Counter(task.name for task in open_tasks)
    all_of = Counter(task.name for task in rank.tasks)
    found: list[Finding] = []
    for name, count in opened.items():
        if count < FEWEST_OPEN_TASKS or count < MAJORITY * all_of[name]:
            continue
        starts = np.array([task.ts for task in open_tasks if task.name == name])
        spread = (starts.max() - starts.min()) / max(end - starts.min(), 1)
        if spread < MAJORITY:  # began together: a pool
            continue
        found.append(
            Finding(
                id="tasks-never-end",
                title=f"Tasks never end: {count:,} tasks named {name} were open at the end of the run.",
                evidence=(
                    f"{count:,} of {all_of[name]:,} tasks of that name did not end; they began all through the run",
                ),
                action="find out what they wait for; give it a timeout (asyncio.timeout), or cancel tasks that nobody needs any more",
                gain="memory no longer grows with every request",
                certainty="certain",
                events=longest(rank, [task for task in open_tasks if task.name == name]),
            )
        )
    return found[:1]

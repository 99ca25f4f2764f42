"""Queues of asyncio that grow."""

from __future__ import annotations

from collections import Counter

import numpy as np

from stepscope.analysis.findings import Finding
from stepscope.analysis.measures.event_loop import length_of
from stepscope.analysis.measures.evidence import places
from stepscope.analysis.measures.job import Job
from stepscope.analysis.tables.rank_summary import parse_frame
from stepscope.analysis.thresholds import FEWEST_READINGS, MAJORITY, QUEUE_FULL, QUEUE_GROWTH


def check(job: Job) -> list[Finding]:
    """Finds a queue whose length rises all through the run."""
    for rank in job.ranks:
        for name, readings in rank.queues.items():
            values = np.array([value for _, value in readings])
            if len(values) < FEWEST_READINGS:
                continue
            first, second, third = (float(np.median(part)) for part in np.array_split(values, 3))
            if not first < second < third or third - first < QUEUE_GROWTH or values[-1] < QUEUE_FULL * values.max():
                continue
            half = MAJORITY * length_of(rank.tasks)
            lasting = Counter(task.name for task in rank.tasks if task.open or task.dur > half)
            tasks = ", ".join(f"{task} ({count})" for task, count in lasting.most_common(4))
            place = parse_frame(name)
            seconds = (readings[-1][0] - readings[0][0]) / 1e9
            return [
                Finding(
                    id="queue-grows",
                    title=f"A queue grows: the one made in {place.function if place else name} holds {values[-1]:,.0f} items at the end.",
                    evidence=(
                        f"it held {first:,.0f} items in the first third of the run, {second:,.0f} in the second and {third:,.0f} "
                        f"in the last: {(values[-1] - values[0]) / seconds:,.0f} more each second",
                        *(
                            (f"tasks that lasted most of the run, some of which take from it: {tasks}",)
                            if tasks
                            else ()
                        ),
                    ),
                    action="more or quicker consumers, or asyncio.Queue(maxsize=...), so that producers wait",
                    gain="answers no longer get later and later, and memory no longer grows",
                    certainty="certain",
                    places=places(place),
                )
            ]
    return []

"""Values of tensors that the loop reads."""

from __future__ import annotations

import numpy as np

from stepscope.analysis.findings import Finding
from stepscope.analysis.measures.evidence import places, samples_at
from stepscope.analysis.measures.job import Job
from stepscope.analysis.measures.operators import gaps_ns, hottest_of_operators
from stepscope.analysis.tables.rank_summary import durations
from stepscope.analysis.thresholds import FINDING, READ_BACKS
from stepscope.runtime.display.text_table import human_time


def check(job: Job) -> list[Finding]:
    """Finds steps in which many values are read, by what the reads and the gaps between operators take."""
    rank = job.main
    took, count = durations(rank.judged_steps), float(np.median(rank.judged_steps["operators"]))
    rows = [row for row in rank.rows if row.name == "aten::item"]
    steps = max(len(rank.facts), 1)
    reads, read_ns = sum(row.count for row in rows) / steps, sum(row.total for row in rows) / steps
    if reads < READ_BACKS or count < 1:
        return []
    cost = (read_ns + min(1.0, reads / count) * gaps_ns(rank)) / float(np.median(took))
    if cost < FINDING:
        return []
    place = hottest_of_operators(rank)
    spent = human_time(cost * rank.step_ns)
    return [
        Finding(
            id="value-read-back",
            title=f"The loop reads values of tensors {reads:,.0f} times in each step.",
            cost=cost,
            cost_ns=cost * rank.step_ns,
            evidence=(
                f"aten::item is called {reads:,.0f} times in each step; these calls and the Python between them take {spent}",
                *samples_at(place, "outside of backward"),
            ),
            action="keep values as tensors, and read many at once and less often: .tolist() of a whole tensor, or sums on the device",
            gain=f"up to {spent} of each step; on a device each read waits for all kernels launched before it",
            certainty="certain",
            places=places(place),
        )
    ]

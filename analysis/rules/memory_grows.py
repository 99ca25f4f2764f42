"""Memory that grows from step to step."""

from __future__ import annotations

import numpy as np

from stepscope.analysis.findings import Finding
from stepscope.analysis.measures.job import Job
from stepscope.analysis.thresholds import FEWEST_STEPS, GROWTH_BYTES, GROWTH_PER_100_STEPS, LATE_GROWTH, RECORDED_BYTES


def check(job: Job) -> list[Finding]:
    """Finds resident memory that grows, by the median of its slopes over steps, so that single jumps count for nothing."""
    found: list[Finding] = []
    for rank in job.ranks:
        memory = rank.judged_steps["resident_bytes"] if len(rank.judged_steps) else np.zeros(0)
        measured = np.flatnonzero(np.isfinite(memory))
        if len(measured) < FEWEST_STEPS:
            continue
        values = memory[measured]
        half = len(values) // 2
        slope = float(np.median((values[half : 2 * half] - values[:half]) / half))
        growth = slope * len(values)
        thirds = np.array_split(values, 3)
        monotonic = float(np.median(thirds[0])) < float(np.median(thirds[1])) < float(np.median(thirds[2]))
        quarters = [float(np.mean(part)) for part in np.array_split(values[half:], 4)]
        late = float(np.median(np.diff(np.array(quarters))))
        if slope <= RECORDED_BYTES * rank.events / max(len(rank.facts), 1):
            continue  # as much as recording may hold
        if not monotonic or growth < GROWTH_BYTES or slope * 100 < GROWTH_PER_100_STEPS * values[0] or late <= 0:
            continue
        # Memory that grows at first and then no more is a cache that fills.
        if float(thirds[2][-1] - thirds[2][0]) < LATE_GROWTH * float(values[-1] - values[0]):
            continue
        found.append(
            Finding(
                id="memory-grows",
                title=f"Memory grows by {slope / 1e6:,.2f} MB in each step: {growth / 1e6:,.0f} MB in {len(values)} steps.",
                evidence=(
                    f"resident memory rose from {values[0] / 1e6:,.0f} MB to {values[-1] / 1e6:,.0f} MB, and in every third of the run",
                ),
                action="find what the loop keeps: losses that are added up without .item() or .detach(), lists of outputs, caches without a limit",
                gain="the run does not end for lack of memory",
                certainty="certain",
                ranks=() if rank.rank is None else (rank.rank,),
                steps=(int(rank.judged_steps["step"][measured[-1]]), int(rank.judged_steps["step"][measured[0]])),
            )
        )
    return found[:1]

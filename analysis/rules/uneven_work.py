"""Work that is uneven from step to step, without a slow rank."""

from __future__ import annotations

from stepscope.analysis.findings import Finding
from stepscope.analysis.measures.evidence import MOST_STEPS
from stepscope.analysis.measures.job import Job
from stepscope.analysis.measures.rank_comparison import compare_ranks
from stepscope.analysis.thresholds import UNEVEN_WORK
from stepscope.runtime.display.text_table import human_time


def check(job: Job) -> list[Finding]:
    """Finds ranks that wait for each other, another one in each step."""
    compared = compare_ranks(job)
    if compared is None or compared.is_one_rank or compared.cost < UNEVEN_WORK:
        return []
    wait = human_time(float(compared.waits.mean()))
    last = ", ".join(
        f"rank {compared.number(index)} in {count}" for index, count in enumerate(compared.times_last.tolist())
    )
    longest: list[int] = (-compared.waits).argsort(kind="stable")[:MOST_STEPS].tolist()
    return [
        Finding(
            id="uneven-work",
            title=f"Work is uneven: in each step the ranks wait {wait} for the slowest of them.",
            cost=compared.cost,
            cost_ns=float(compared.waits.mean()),
            evidence=(
                f"which rank comes last to the collectives changes: {last} of {len(compared.steps)} steps",
                f"the last rank has {human_time(float(compared.longer.mean()))} more to do than the others in that step; "
                "over all steps no rank is slower",
            ),
            action="give all ranks equal work in each step: batches of equal total length, or samples bucketed by length",
            gain=f"up to {wait} of each step",
            certainty="likely",
            steps=tuple(compared.steps[at] for at in longest),
        )
    ]

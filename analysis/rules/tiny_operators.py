"""Thousands of tiny operators in a step."""

from __future__ import annotations

import numpy as np

from stepscope.analysis.findings import Finding
from stepscope.analysis.measures.evidence import places, samples_at, steps_with_most
from stepscope.analysis.measures.job import Job
from stepscope.analysis.measures.operators import gaps_ns, hottest_of_operators
from stepscope.analysis.tables.rank_summary import durations
from stepscope.analysis.thresholds import FINDING, MANY_OPERATORS, TINY_OPERATOR_NS
from stepscope.runtime.display.text_table import human_time
from stepscope.runtime.windows.step_facts import Phase


def check(job: Job) -> list[Finding]:
    """Finds steps of many tiny operators, by what the forward pass and the gaps between operators take."""
    rank = job.main
    count = float(np.median(rank.judged_steps["operators"]))
    if count < MANY_OPERATORS:
        return []
    mean = float(np.median(rank.judged_steps["operator_ns"])) / count
    spent = float(np.median(rank.phase(Phase.FORWARD))) + gaps_ns(rank)
    share = spent / float(np.median(durations(rank.judged_steps)))
    if mean > TINY_OPERATOR_NS or share < FINDING:
        return []
    place = hottest_of_operators(rank)
    return [
        Finding(
            id="tiny-operators",
            title=f"{count:,.0f} tiny operators in each step: launching them takes the time.",
            cost=share,
            cost_ns=spent,
            evidence=(
                f"an operator takes {human_time(mean)} on average; the forward pass and the gaps between operators take "
                f"{human_time(spent)} of {human_time(rank.step_ns)}",
                *samples_at(place, "outside of backward"),
            ),
            action="one operator on a whole tensor instead of a loop over its parts; torch.compile, or foreach and fused optimizers",
            gain=f"up to {human_time(spent)} of each step",
            certainty="likely",
            steps=steps_with_most(rank.judged_steps, rank.judged_steps["operators"]),
            places=places(place),
        )
    ]

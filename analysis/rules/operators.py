"""Operators: thousands of tiny ones, and values that are read back."""

from __future__ import annotations

import numpy as np

from stepscope.analysis.findings import Finding, Place
from stepscope.analysis.rules.evidence import Job, in_backward, places, samples_at, steps_with_most
from stepscope.analysis.tables.rank_summary import RankSummary, durations, hottest
from stepscope.analysis.thresholds import FEWEST_SAMPLES, FINDING, MANY_OPERATORS, READ_BACKS, TINY_OPERATOR_NS
from stepscope.runtime.display.text_table import human_time
from stepscope.runtime.windows.step_facts import Phase


def gaps_ns(rank: RankSummary) -> float:
    """ns of a step that no operator covers, by the median."""
    return float(np.median(rank.uncovered() + rank.phase(Phase.SPAN)))


def operators_a_step(rank: RankSummary) -> float:
    """How many operators a step has, with those inside of others."""
    count = sum(row.count for row in rank.rows if row.category in ("cpu_op", "operator"))
    return count / max(len(rank.facts), 1)


def hottest_of_operators(rank: RankSummary) -> Place | None:
    """The function in which most samples are that were taken while the thread ran, outside of backward."""
    samples = [sample for sample in rank.samples_in_steps() if sample.state != "S" and not in_backward(sample)]
    return hottest(samples) if len(samples) >= FEWEST_SAMPLES else None


def check_tiny_operators(job: Job) -> list[Finding]:
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


def check_value_read_back(job: Job) -> list[Finding]:
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

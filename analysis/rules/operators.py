"""Operators: thousands of tiny ones, and values that are read back."""

from __future__ import annotations

import numpy as np

from stepscope.analysis.findings import Finding
from stepscope.analysis.job import Job, Rule
from stepscope.analysis.rank_summary import durations, hottest
from stepscope.analysis.rules.program_code import in_backward
from stepscope.analysis.thresholds import FEWEST_SAMPLES, FINDING, MANY_OPERATORS, READ_BACKS, TINY_OPERATOR_NS
from stepscope.runtime.step_facts import Phase
from stepscope.runtime.table import human_time


def check(job: Job) -> list[Finding]:
    """Finds steps of many tiny operators, or of many values that are read back, by what they and the gaps between them take."""
    rank = job.main
    took, count = durations(rank.judged_steps), float(np.median(rank.judged_steps["operators"]))
    if count < 1:
        return []
    operators = float(np.median(rank.judged_steps["operator_ns"]))
    forward = float(np.median(rank.phase(Phase.FORWARD)))
    gaps = float(np.median(rank.uncovered() + rank.phase(Phase.SPAN)))
    reads = sum(row.count for row in rank.rows if row.name == "aten::item") / max(len(rank.facts), 1)
    samples = [sample for sample in rank.samples_in_steps() if sample.state != "S" and not in_backward(sample)]
    place = hottest(samples) if len(samples) >= FEWEST_SAMPLES else None
    places = () if place is None else (place,)
    where = () if place is None else (f"{place.share:.0%} of the stack samples outside of backward are in {place}",)
    share = (forward + gaps) / float(np.median(took))
    if reads >= READ_BACKS:
        read_ns = sum(row.total for row in rank.rows if row.name == "aten::item") / max(len(rank.facts), 1)
        part = min(1.0, reads / count)
        cost = (read_ns + part * gaps) / float(np.median(took))
        if cost >= FINDING:
            return [
                Finding(
                    id="value-read-back",
                    title=f"The loop reads values of tensors {reads:,.0f} times in each step.",
                    cost=cost,
                    cost_ns=cost * rank.step_ns,
                    evidence=(
                        f"aten::item is called {reads:,.0f} times in each step; these calls and the Python between them take {human_time(cost * rank.step_ns)}",
                        *where,
                    ),
                    action="keep values as tensors, and read many at once and less often: .tolist() of a whole tensor, or sums on the device",
                    gain=f"up to {human_time(cost * rank.step_ns)} of each step; on a device each read waits for all kernels launched before it",
                    certainty="certain",
                    places=places,
                )
            ]
    mean = operators / count
    if count >= MANY_OPERATORS and mean <= TINY_OPERATOR_NS and share >= FINDING:
        return [
            Finding(
                id="tiny-operators",
                title=f"{count:,.0f} tiny operators in each step: launching them takes the time.",
                cost=share,
                cost_ns=forward + gaps,
                evidence=(
                    f"an operator takes {human_time(mean)} on average; the forward pass and the gaps between operators take "
                    f"{human_time(forward + gaps)} of {human_time(rank.step_ns)}",
                    *where,
                ),
                action="one operator on a whole tensor instead of a loop over its parts; torch.compile, or foreach and fused optimizers",
                gain=f"up to {human_time(forward + gaps)} of each step",
                certainty="likely",
                places=places,
            )
        ]
    return []


RULES = (
    Rule(
        id="operators",
        needs="torch's operators",
        finds="loops over elements that launch an operator or read a value for each",
        wrong_if="the step is as long with the loop replaced by one operator",
        check=check,
    ),
)

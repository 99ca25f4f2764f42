"""Operators: thousands of tiny ones, and values that are read back."""

from __future__ import annotations

import re

import numpy as np

from stepscope.analysis.findings import Finding, Place
from stepscope.analysis.rules.evidence import (
    Job,
    in_backward,
    in_loader,
    in_program_code,
    places,
    samples_at,
    steps_with_most,
)
from stepscope.analysis.tables.rank_summary import RankSummary, durations, hottest
from stepscope.analysis.thresholds import (
    FEWEST_SAMPLES,
    FINDING,
    MAJORITY,
    MANY_OPERATORS,
    READ_BACKS,
    TINY_OPERATOR_NS,
)
from stepscope.runtime.display.text_table import human_time
from stepscope.runtime.windows.step_facts import Phase


def gaps_ns(rank: RankSummary) -> float:
    """ns of a step that no operator covers, by the median."""
    return float(np.median(rank.uncovered() + rank.phase(Phase.SPAN)))


def operators_a_step(rank: RankSummary) -> float:
    """Number of operators in a step, with those inside of others."""
    count = sum(row.count for row in rank.rows if row.category in ("cpu_op", "operator"))
    return count / max(len(rank.facts), 1)


def hottest_of_operators(rank: RankSummary) -> Place | None:
    """The function in which most samples outside of backward are. If there are enough in the program's own code, which calls an operator
    itself, only these count, and no modules of torch. Samples of a thread that waits count, as reading a value from a device waits."""
    samples = [sample for sample in rank.samples_in_steps() if not in_backward(sample)]
    direct = [sample for sample in samples if in_program_code(sample) and not in_loader(sample)]
    samples = direct if len(direct) >= FEWEST_SAMPLES else samples
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
                *samples_at(place, "between operators"),
            ),
            action="one operator on a whole tensor instead of a loop over its parts; larger batches; torch.compile, or foreach and fused optimizers",
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
                *samples_at(place, "between operators"),
            ),
            action="keep values as tensors, and read many at once and less often: .tolist() of a whole tensor, or sums on the device",
            gain=f"up to {spent} of each step; on a device each read waits for all kernels launched before it",
            certainty="certain",
            places=places(place),
        )
    ]


OPTIMIZER_STEP = re.compile(r"Optimizer\.step#(Adam|AdamW|SGD|Adagrad)\.step")
"""Spans of torch's optimizers that have a fused version, also for the CPU."""
FUSED = "aten::_fused_"
"""Prefix of the names of operators that fused optimizers use."""


def optimizer_share(rank: RankSummary) -> float:
    """The optimizer's share of a step, by the median."""
    return float(np.median(rank.phase(Phase.OPTIMIZER))) / rank.step_ns


def fused_optimizer(rank: RankSummary) -> str:
    """The fused optimizer to take on the CPU in place of one that updates each tensor by several operators, and why; empty where none is
    known."""
    names = sorted({match[1] for row in rank.rows if (match := OPTIMIZER_STEP.fullmatch(row.name))})
    if not names or rank.devices or not any(row.name.startswith("aten::") for row in rank.rows):
        return ""
    if any(row.name.startswith(FUSED) for row in rank.rows):
        return ""
    return f"torch.optim.{names[0]}(..., fused=True) updates all values of a tensor in one pass"


def check_slow_optimizer(job: Job) -> list[Finding]:
    """Finds an optimizer that takes longer than forward, backward and all else together, where the host computes."""
    rank = job.main
    cost = optimizer_share(rank)
    if cost < MAJORITY or rank.devices or not rank.rows:
        return []
    spent = human_time(cost * rank.step_ns)
    fused = fused_optimizer(rank)
    fewer = "fewer updates: larger batches, or gradients accumulated over several"
    return [
        Finding(
            id="slow-optimizer",
            title=f"The optimizer takes {cost:.0%} of each step.",
            cost=cost,
            cost_ns=cost * rank.step_ns,
            evidence=(f"it takes {spent} of a median step of {human_time(rank.step_ns)}",),
            action=f"{fused}; {fewer}" if fused else fewer,
            gain=f"up to {spent} of each step",
            certainty="certain",
            steps=steps_with_most(rank.judged_steps, rank.phase(Phase.OPTIMIZER)),
        )
    ]

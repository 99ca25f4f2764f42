"""Statistics of steps, and where their time went."""

from __future__ import annotations

import numpy as np

from stepscope.analysis.findings import RankAnswer, Share, Statistics
from stepscope.analysis.rank_summary import RankSummary, durations
from stepscope.runtime.step_facts import Facts, Phase
from stepscope.runtime.table import human_time

NAMES = {
    Phase.GARBAGE_COLLECTION: "garbage collection",
    Phase.COMMUNICATION: "communication",
    Phase.CHECKPOINT: "checkpoint",
    Phase.FORCED_WRITE: "forced writes",
    Phase.DATA: "data",
    Phase.OPTIMIZER: "optimizer",
    Phase.BACKWARD: "backward",
    Phase.COPY: "copies to devices",
    Phase.FORWARD: "forward",
    Phase.SUSPENDED: "waiting (task)",
    Phase.BACKWARD_ELSEWHERE: "backward",
    Phase.COMMUNICATION_ELSEWHERE: "communication",
    Phase.SPAN: "your spans",
}
UNCOVERED = "not covered"


def answer_of(summary: RankSummary) -> RankAnswer:
    """Statistics and shares of a rank."""
    steady = summary.steady
    if not len(steady):
        return RankAnswer(rank=summary.rank, name=summary.name, statistics=None, shares=(), devices=summary.devices)
    return RankAnswer(
        rank=summary.rank,
        name=summary.name,
        statistics=statistics(summary),
        shares=shares(summary),
        startup_ns=float(durations(summary.facts)[0]),
        devices=summary.devices,
    )


def statistics(summary: RankSummary) -> Statistics:
    """Of steady steps."""
    steady, took = summary.steady, durations(summary.steady)
    mean = float(np.mean(took))
    slowest = int(np.argmax(took))
    return Statistics(
        steps=len(summary.facts),
        steady=len(steady),
        mean=mean,
        p50=float(np.median(took)),
        p95=float(np.quantile(took, 0.95)),
        rate=1e9 / mean,
        slowest=int(steady["step"][slowest]),
        slowest_ns=float(took[slowest]),
        slowest_why=difference(summary, slowest),
    )


def parts(summary: RankSummary) -> dict[str, np.ndarray]:
    """ns of each part in each steady step; they add up to the step."""
    return parts_of(summary.steady)


def parts_of(facts: Facts) -> dict[str, np.ndarray]:
    """ns of each part in each of these steps."""
    found: dict[str, np.ndarray] = {}
    for phase in Phase:
        column = facts["phases"][:, int(phase)]
        if column.any():
            name = NAMES[phase]
            found[name] = found[name] + column if name in found else column
    found[UNCOVERED] = durations(facts) - facts["phases"].sum(axis=1)
    return found


def shares(summary: RankSummary) -> tuple[Share, ...]:
    """The largest first, what nothing covers last. By sums over the steps below the 95th percentile, so that they add up."""
    took = durations(summary.steady)
    usual = took <= np.quantile(took, 0.95)
    total = float(took[usual].sum()) or 1.0
    median = float(np.median(took))
    made = [
        Share(name, float(column[usual].sum()) / total * median, float(column[usual].sum()) / total)
        for name, column in parts(summary).items()
    ]
    return tuple(sorted(made, key=lambda share: (share.name == UNCOVERED, -share.ns)))


def difference(summary: RankSummary, index: int) -> str:
    """What a steady step has more of than usual."""
    excess = float(durations(summary.steady)[index] - np.median(durations(summary.steady)))
    if excess <= 0:
        return ""
    more = {name: float(column[index] - np.median(column)) for name, column in parts(summary).items()}
    name = max(more, key=lambda each: more[each])
    if more[name] < 0.5 * excess:
        return "no single part"
    return (
        f"{human_time(more[name])} more in {name}"
        if name != UNCOVERED
        else f"{human_time(more[name])} more in nothing that was recorded"
    )

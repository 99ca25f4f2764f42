"""Statistics of steps, and where their time went."""

from __future__ import annotations

import numpy as np

from stepscope.analysis.findings import RankAnswer, Share
from stepscope.analysis.rank_summary import RankSummary
from stepscope.runtime.step_parts import UNCOVERED, durations, is_uncovered, parts_of
from stepscope.runtime.step_statistics import statistics_of


def answer_of(summary: RankSummary) -> RankAnswer:
    """Statistics and shares of a rank."""
    steady = summary.steady
    if not len(steady):
        return RankAnswer(rank=summary.rank, name=summary.name, statistics=None, shares=(), devices=summary.devices)
    return RankAnswer(
        rank=summary.rank,
        name=summary.name,
        statistics=statistics_of(summary.facts, steady),
        shares=shares(summary),
        startup_ns=summary.of.startup_ns,
        shutdown_ns=summary.of.shutdown_ns,
        devices=summary.devices,
    )


def parts(summary: RankSummary) -> dict[str, np.ndarray]:
    """ns of each part in each steady step; they add up to the step."""
    return parts_of(summary.steady)


def shares(summary: RankSummary) -> tuple[Share, ...]:
    """The largest first, what nothing covers last. By sums over the steps below the 95th percentile, so that they add up."""
    took = durations(summary.steady)
    usual = took <= np.quantile(took, 0.95)
    total = float(took[usual].sum()) or 1.0
    median = float(np.median(took))
    made = [
        Share(name, float(column[usual].sum()) / total * median, float(column[usual].sum()) / total)
        for name, column in parts(summary).items()
        if name == UNCOVERED or column[usual].any()
    ]
    return tuple(sorted(made, key=lambda share: (is_uncovered(share.name), -share.ns)))

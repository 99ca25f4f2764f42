"""Shared by rules on operators: the time between them, and the program's function that calls them."""

from __future__ import annotations

import numpy as np

from stepscope.analysis.findings import Place
from stepscope.analysis.measures.sampled_stacks import in_backward
from stepscope.analysis.tables.rank_summary import RankSummary, hottest
from stepscope.analysis.thresholds import FEWEST_SAMPLES
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

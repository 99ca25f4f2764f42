"""Which rank comes last to the collectives of each step, and for how long the others wait for it. This compares no clocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from stepscope.analysis.measures.job import Job
from stepscope.analysis.tables.rank_summary import RankSummary, durations
from stepscope.analysis.thresholds import FEWEST_STEPS, RANK_LAST, RANK_WAIT


class RankComparison:
    """The own work of the ranks in the steps that all of them have: all but communication, and without what a rank waits for
    processors. The rank with most of it is the one that the others wait for. Arrays are of (ranks, steps), in ns."""

    def __init__(self, ranks: list[RankSummary], steps: list[int]) -> None:
        self.ranks, self.steps = ranks, steps
        index = [np.searchsorted(rank.judged_steps["step"], steps) for rank in ranks]
        pairs = list(zip(ranks, index, strict=True))
        communication = np.array([rank.communication()[at] for rank, at in pairs])
        queued = np.array([np.nan_to_num(rank.judged_steps["run_queue_ns"])[at] for rank, at in pairs])
        self.took: Any = np.array([durations(rank.judged_steps)[at] for rank, at in pairs])
        self.own: Any = np.maximum(self.took - communication - queued, 0)
        self.waits: Any = _others(communication, communication.min(axis=0)) - communication.min(axis=0)
        """ns of each step that the others wait, in the mean, beyond what the last one communicates."""
        self.longer: Any = self.own.max(axis=0) - _others(self.own, self.own.max(axis=0))
        """ns of each step that the last rank has to do beyond the others."""
        self.times_last: Any = np.bincount(self.own.argmax(axis=0), minlength=len(ranks))

    @property
    def cost(self) -> float:
        """Share of the steps for which ranks wait."""
        return float(self.waits.mean()) / float(self.took.mean())

    @property
    def last(self) -> int:
        """The index of the rank that comes last most often."""
        return int(self.times_last.argmax())

    @property
    def is_one_rank(self) -> bool:
        """Whether it is the same rank in most steps."""
        return bool(self.times_last[self.last] >= RANK_LAST * len(self.steps))

    def number(self, index: int) -> int:
        """The rank's number; its index if it has none."""
        rank = self.ranks[index].rank
        return index if rank is None else rank


def compare_ranks(job: Job) -> RankComparison | None:
    """Compares the ranks that communicate; `None` if they do not wait for each other for long, or cannot be compared."""
    ranks = [rank for rank in job.ranks if len(rank.judged_steps) and rank.communication().any()]
    if len(ranks) < 2:
        return None
    numbers: list[set[int]] = [set(rank.judged_steps["step"].tolist()) for rank in ranks]
    common = sorted(numbers[0].intersection(*numbers[1:]))
    if len(common) < FEWEST_STEPS:
        return None
    found = RankComparison(ranks, common)
    longer = float(found.longer.mean()) / float(found.took.mean())
    return found if found.cost >= RANK_WAIT and longer >= RANK_WAIT else None


def _others(values: Any, extreme: Any) -> Any:
    """The mean of each step over the ranks but for the one with the extreme value."""
    return (values.sum(axis=0) - extreme) / (len(values) - 1)

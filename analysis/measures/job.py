"""The job that rules check."""

from __future__ import annotations

from stepscope.analysis.tables.rank_summary import RankSummary


class Job:
    """All ranks, and the one that stands for all of them where a rule looks at one process."""

    def __init__(self, ranks: list[RankSummary]) -> None:
        self.ranks = ranks
        self.main = max(ranks, key=lambda rank: (len(rank.facts), -(rank.rank or 0)))

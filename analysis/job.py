"""The interface of rules, and the job that they check."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from stepscope.analysis.findings import Finding
from stepscope.analysis.rank_summary import RankSummary


class Job:
    """All ranks, and the one that stands for all of them where a rule looks at one process."""

    def __init__(self, ranks: list[RankSummary]) -> None:
        self.ranks = ranks
        self.main = max(ranks, key=lambda rank: (len(rank.facts), -(rank.rank or 0)))


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of fault."""

    id: str
    needs: str
    """The data that it needs."""
    finds: str
    threshold: str
    """From when on there is a finding."""
    wrong_if: str
    """A check that would prove a finding wrong."""
    check: Callable[[Job], list[Finding]]
    of_steps: bool = True
    """Whether it judges steps. Such a rule is checked only if there are `FEWEST_STEPS` or more."""

"""The governor: which level of detail keeps the cost of recording within its budget.

A pure state machine: it is told what was measured and what each level is expected to cost, and answers with a level.
"""

from __future__ import annotations

from collections.abc import Sequence

SMOOTHING = 0.5
"""Weight of the latest reading."""
MARGIN = 0.7
"""Share of the budget within which the next higher level must be expected to stay before detail is raised to it."""
PATIENCE = 2
"""Readings in a row that must agree before detail is raised, at first."""
LONGEST_PATIENCE = 64


class Governor:
    """Lowers detail when recording costs more than its budget, and raises it when there is room.

    Levels are numbered from 0, full detail. Lowering goes one level at a time, unless the cost is more than twice the
    budget: then at once to the first level that is expected to fit. Raising goes at once to the highest level that is
    expected to cost less than `MARGIN` of the budget, when that was so for `PATIENCE` readings in a row. Detail that was
    raised and had to be lowered again soon makes it wait twice as long the next time, and go one level at a time until
    then, so what is expected may be wrong for ever without detail going up and down for ever.
    """

    def __init__(self, budget: float, levels: int) -> None:
        """
        Args:
            budget: allowed cost, as a share of the time.
            levels: how many there are.
        """
        self._budget, self._last = budget, levels - 1
        self.level = 0
        self.cost: float | None = None
        """The smoothed cost at this level; `None` before the first reading of it."""
        self.patience = PATIENCE
        self._calm = 0
        self._mixed = False
        self._since_raised: int | None = None

    def update(self, cost: float, expected: Sequence[float]) -> int:
        """Takes a reading and decides.

        Args:
            cost: what recording took since the reading before, as a share of the time.
            expected: the same at each level, as far as is known.

        Returns:
            The level from now on.
        """
        if self._mixed:
            self._mixed = False  # The level changed within this reading: it says nothing of either.
            return self.level
        self.cost = cost if self.cost is None else self.cost + SMOOTHING * (cost - self.cost)
        if self._since_raised is not None:
            self._since_raised += 1
        if self.cost > self._budget and self.level < self._last:
            self._lower(expected)
        elif self.level and max(self.cost, expected[self.level - 1]) <= MARGIN * self._budget:
            self._calm += 1
            if self._calm >= self.patience:
                self._go(self._highest(expected))
                self._since_raised = 0
        else:
            self._calm = 0
        if self._since_raised is not None and self._since_raised > 2 * LONGEST_PATIENCE:
            self.patience, self._since_raised = PATIENCE, None
        return self.level

    def _highest(self, expected: Sequence[float]) -> int:
        """The highest level that is expected to fit, as well as all below it."""
        level = self.level - 1
        while self.patience == PATIENCE and level and expected[level - 1] <= MARGIN * self._budget:
            level -= 1
        return level

    def _lower(self, expected: Sequence[float]) -> None:
        if self._since_raised is not None and self._since_raised <= 2 * self.patience:
            self.patience = min(2 * self.patience, LONGEST_PATIENCE)
        level = self.level + 1
        if self.cost is not None and self.cost > 2 * self._budget:
            while level < self._last and expected[level] > self._budget:
                level += 1
        self._go(level)

    def _go(self, level: int) -> None:
        self.level = level
        self.cost = None
        self._calm = 0
        self._mixed = True

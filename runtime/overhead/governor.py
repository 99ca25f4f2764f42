"""The governor: chooses the level of detail at which recording stays within its budget.

A pure state machine: from the measured cost and the expected cost of the next higher level it computes the new level.
"""

from __future__ import annotations

from stepscope.runtime.schedule.detail import LEVELS

SMOOTHING = 0.5
"""Weight of the latest reading."""
MARGIN = 0.7
"""Detail is raised if the next higher level is expected to cost less than this share of the budget."""
MIN_CALM_READINGS = 2
"""Readings in a row that must agree before detail is raised, at first."""
MAX_CALM_READINGS = 64


class Governor:
    """Lowers detail by a level when recording costs more than its budget, and raises it by one when there is room.

    There is room when the next higher level was expected to cost less than `MARGIN` of the budget in several consecutive
    readings. Their number doubles each time that a raised level had to be lowered again soon, so that a wrong expectation
    does not make detail go up and down for ever.
    """

    def __init__(self, budget: float) -> None:
        """Args: allowed cost, as a share of the time."""
        self._budget = budget
        self.level = 0
        """Index into `LEVELS`."""
        self.cost: float | None = None
        """The smoothed cost at this level; `None` before the first reading of it."""
        self.calm_readings = MIN_CALM_READINGS
        self._calm = 0
        self._since_raised = 2 * MAX_CALM_READINGS

    def update(self, cost: float, higher: float) -> int:
        """Adds a reading and returns the index of the level from now on.

        Args:
            cost: cost of recording since the previous reading, all of it at this level, as a share of the time.
            higher: expected cost at the next higher level.
        """
        self.cost = cost if self.cost is None else self.cost + SMOOTHING * (cost - self.cost)
        self._since_raised += 1
        if self._since_raised > 2 * MAX_CALM_READINGS:
            self.calm_readings = MIN_CALM_READINGS
        has_room = max(self.cost, higher) <= MARGIN * self._budget
        self._calm = self._calm + 1 if has_room else 0
        if self.cost > self._budget and self.level < len(LEVELS) - 1:
            if self._since_raised <= 2 * self.calm_readings:
                self.calm_readings = min(2 * self.calm_readings, MAX_CALM_READINGS)
            self._set_level(self.level + 1)
        elif self.level and self._calm >= self.calm_readings:
            self._set_level(self.level - 1)
            self._since_raised = 0
        return self.level

    def _set_level(self, level: int) -> None:
        self.level, self.cost, self._calm = level, None, 0

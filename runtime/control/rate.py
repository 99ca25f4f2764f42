"""Measures the speed of a loop, in steps per second."""

from __future__ import annotations

from collections import deque

from stepscope.runtime.requests.command import MAX_RATE

SPACING_S = 0.25
"""Minimum seconds between two readings of a pace."""


class Pace:
    """Steps per second while a loop moves: the fastest of the last intervals in which it moved.

    A loop that stands still, for a checkpoint or because its first step compiles, may continue at any moment. Right after it
    has stood still, its pace is unknown until it was observed for `spacing` seconds.
    """

    def __init__(self, spacing: float = SPACING_S) -> None:
        """Args: seconds between two readings, at most `SPACING_S`."""
        self._spacing = min(spacing, SPACING_S)
        self._step: int | None = None
        self._at = self._changed_at = self._resumed_at = 0.0
        self._begin: tuple[float, int] | None = None
        """Begin of the current interval."""
        self._rates: deque[float] = deque(maxlen=16)

    def add(self, at: float, step: int) -> None:
        """Args: time of the reading in seconds, and the number of the step."""
        before, stood_for = self._step, self._at - self._changed_at
        self._at, self._step = at, step
        if before is None:
            self._changed_at = at
        if before is None or step == before:
            return
        if stood_for >= self._spacing:
            self._resumed_at = at
        self._changed_at = at
        if self._begin is None or step < self._begin[1]:
            self._begin = at, step
        elif at - self._begin[0] >= self._spacing:
            self._rates.append(min((step - self._begin[1]) / (at - self._begin[0]), MAX_RATE))
            self._begin = at, step

    @property
    def is_measured(self) -> bool:
        """Whether the loop was observed for long enough."""
        return bool(self._rates) and self._at - self._resumed_at >= self._spacing

    @property
    def per_second(self) -> float:
        """Steps per second; 0 if unknown."""
        return max(self._rates, default=0.0)

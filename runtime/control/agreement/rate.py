"""How fast a loop goes."""

from __future__ import annotations

from collections import deque
from typing import Annotated

import msgspec

MAX_RATE = 1e9
"""Steps per second: one takes a nanosecond at least. After the number of the step was set, readings may say more."""
SPAN = 2.0
"""Seconds that are looked back at most."""
SPACING_S = 0.25
"""Between two readings of a pace, at least."""

StepsPerSecond = Annotated[float, msgspec.Meta(ge=0, le=MAX_RATE)]


class StepRate:
    """Steps per second over the last moments, from readings of the counter."""

    def __init__(self) -> None:
        self._readings: deque[tuple[float, int]] = deque(maxlen=64)

    def add(self, at: float, step: int) -> None:
        """Args: time of the reading in seconds, and the number of the step."""
        if self._readings and at - self._readings[-1][0] < 0.01:
            return
        self._readings.append((at, step))
        while len(self._readings) > 2 and at - self._readings[1][0] > SPAN:
            self._readings.popleft()

    @property
    def per_second(self) -> float:
        """Steps per second; 0 while there is only one reading."""
        if len(self._readings) < 2:
            return 0.0
        (begin, first), (end, last) = self._readings[0], self._readings[-1]
        return min(max((last - first) / (end - begin), 0.0), MAX_RATE)


class Pace:
    """Steps per second while a loop moves: the fastest of the last intervals between readings at which it had moved.

    A loop that stands still, for a checkpoint or because its first step compiles, may go on at any moment: time in which it
    does not move says nothing of its pace.
    """

    def __init__(self, spacing: float = SPACING_S) -> None:
        """Args: seconds between two readings, at most `SPACING_S`."""
        self._spacing = min(spacing, SPACING_S)
        self._step: int | None = None
        self._moved: tuple[float, int] | None = None
        self._rates: deque[float] = deque(maxlen=16)

    def add(self, at: float, step: int) -> None:
        """Args: time of the reading in seconds, and the number of the step."""
        before, self._step = self._step, step
        if before is None or step == before:
            return
        if self._moved is None or step < self._moved[1]:
            self._moved = at, step
        elif at - self._moved[0] >= self._spacing:
            self._rates.append(min((step - self._moved[1]) / (at - self._moved[0]), MAX_RATE))
            self._moved = at, step

    @property
    def known(self) -> bool:
        """Whether the loop has moved for long enough."""
        return bool(self._rates)

    @property
    def per_second(self) -> float:
        """Steps per second; 0 if that is not known."""
        return max(self._rates, default=0.0)

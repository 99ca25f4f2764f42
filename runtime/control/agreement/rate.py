"""How fast a loop goes."""

from __future__ import annotations

from collections import deque
from typing import Annotated

import msgspec

MAX_RATE = 1e9
"""Steps per second: one takes a nanosecond at least. After the number of the step was set, readings may say more."""
SPAN = 2.0
"""Seconds that are looked back at most."""

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

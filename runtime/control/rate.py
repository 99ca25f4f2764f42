"""How fast a loop goes."""

from __future__ import annotations

from collections import deque

SPAN = 2.0
"""Seconds that are looked back at most."""


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
        return max((last - first) / (end - begin), 0.0)

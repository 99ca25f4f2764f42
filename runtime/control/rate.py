"""How fast a loop goes."""

from __future__ import annotations

from collections import deque

SPAN = 2.0
"""Seconds that are looked back at most."""


class StepRate:
    """Steps per second from readings of the counter; the fastest stretch of the last moments counts."""

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
        readings = list(self._readings)
        rates = [
            (after[1] - before[1]) / (after[0] - before[0])
            for before, after in zip(readings, readings[1:], strict=False)
        ]
        return max(0.0, *rates) if rates else 0.0

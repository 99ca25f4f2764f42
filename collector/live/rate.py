"""How much arrives each second, of late."""

from __future__ import annotations

_SECONDS = 5
"""Whole seconds that are averaged."""


class Rate:
    """Counts in a ring of seconds; `now` is a monotonic time in seconds, which never goes back."""

    def __init__(self) -> None:
        self._counts = [0] * (_SECONDS + 1)
        self._second = 0
        self._first: int | None = None

    def add(self, count: int, now: float) -> None:
        """So much arrived."""
        self._turn(now)
        self._counts[self._second % len(self._counts)] += count

    def per_second(self, now: float) -> float:
        """The average of the last whole seconds, or of those since the first count."""
        if self._first is None:
            return 0.0
        self._turn(now)
        size = len(self._counts)
        seconds = min(self._second - self._first, _SECONDS)
        if seconds == 0:
            return float(self._counts[self._second % size])
        return (sum(self._counts) - self._counts[self._second % size]) / seconds

    def _turn(self, now: float) -> None:
        second = int(now)
        if self._first is None:
            self._first = self._second = second
        for passed in range(min(max(second - self._second, 0), len(self._counts))):
            self._counts[(second - passed) % len(self._counts)] = 0
        self._second = max(self._second, second)

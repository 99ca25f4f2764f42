"""How many spans a second may be sent: a token bucket over recorded time."""

from __future__ import annotations


class Budget:
    """Grants so many for each second of event time.

    Event time, so that the same run is granted the same whether it arrives live, late after an outage, or from a
    journal. Not used for long, it holds what one second grants, or what those who ask have taken if that is longer.
    """

    def __init__(self, per_second: float | None) -> None:
        """Args: most per second; `None` grants everything."""
        self._rate = per_second
        self._tokens = 0.0
        self._at: int | None = None

    def take(self, wanted: int, start: int, end: int) -> int:
        """How many of `wanted` things that happened from `start` to `end`, in ns, may be sent."""
        if self._rate is None:
            return wanted
        seconds = max((end - start) / 1e9, 1.0)
        if self._at is None:
            self._tokens = self._rate * seconds
        else:
            self._tokens += self._rate * max((end - self._at) / 1e9, 0.0)
        self._at = end if self._at is None else max(self._at, end)
        self._tokens = min(self._tokens, self._rate * seconds)
        # One that is allowed less than one a second still gets its turn.
        granted = min(wanted, int(self._tokens))
        self._tokens -= granted
        return granted

"""A stretch of time for which a clock is taken for steady."""

from __future__ import annotations

import numpy as np

from stepscope.collector.clocks.limits import ClockLimits
from stepscope.collector.clocks.lines import Floats, Lines
from stepscope.collector.clocks.round_trips import RoundTrips, Times


class Piece:
    """Bounds of the offset between two clocks, from the round trips of a stretch.

    The offset is the collector's clock less the rank's. Where the rank's shows `sent` the collector's shows `arrived` or
    less, and where it shows `returned`, `answered` or more: nothing travels back in time. That alone bounds the line.
    """

    def __init__(self, trips: RoundTrips, base: int, lines: Lines, limits: ClockLimits) -> None:
        self.start, self.end = int(trips.sent[0]), int(trips.returned.max())
        """By the rank's clock, in ns."""
        self.base = base
        """ns; what `reach` says is to be added to it."""
        self.trips = len(trips)
        self._lines = lines
        self._limits = limits
        self._slack = _slack(limits)

    @classmethod
    def fitted(cls, trips: RoundTrips, limits: ClockLimits) -> Piece | None:
        """The piece of some round trips; `None` if no steady clock within the limits has them."""
        best = trips.shortest
        base = int(trips.arrived[best]) - int(trips.sent[best])
        start = int(trips.sent[0])
        slack = _slack(limits)
        upper = _floats(trips.sent - start), _floats(trips.arrived - trips.sent - base) + slack
        lower = _floats(trips.returned - start), _floats(trips.answered - trips.returned - base) - slack
        lines = Lines.between(upper, lower, limits.drift_ppm * 1e-6, best)
        return None if lines is None else cls(trips, base, lines, limits)

    def reach(self, at: Times) -> tuple[Floats, Floats]:
        """The lowest and the highest offset that is possible at each time of the rank's clock, in ns more than `base`."""
        inside = np.clip(at, self.start, self.end)
        beyond = _floats(np.abs(at - inside))
        low, high = self._lines.reach(_floats(at - self.start))
        low, high = low - self._slack, high + self._slack
        if not beyond.any():
            return low, high
        # Outside its round trips the line goes on, but for what the rate may change; and no rate is beyond the limit.
        nearest_low, nearest_high = self._lines.reach(_floats(inside - self.start))
        changed, limit = self._limits.change_ppm * 1e-6 * beyond, self._limits.drift_ppm * 1e-6 * beyond
        return (
            np.maximum(low - changed, nearest_low - self._slack - limit),
            np.minimum(high + changed, nearest_high + self._slack + limit),
        )

    @property
    def slopes(self) -> tuple[float, float]:
        """By how much the offset grows in a ns, at least and at most."""
        return self._lines.slopes


def pieces_of(trips: RoundTrips, limits: ClockLimits) -> tuple[list[Piece], int]:
    """Pieces of the round trips to one clock, in order of time, and how often the clock was found not to be steady.

    Where no line passes, the round trips are divided until one does. One that fits no clock at all is left out.
    """
    pieces: list[Piece] = []
    unsteady = 0
    waiting = trips.divided(limits.piece_seconds)[::-1]
    while waiting:
        part = waiting.pop()
        piece = Piece.fitted(part, limits)
        if piece is not None:
            pieces.append(piece)
            continue
        unsteady += 1
        if len(part) > 1:
            waiting += part.halves()[::-1]
    return pieces, unsteady


def _slack(limits: ClockLimits) -> float:
    """The largest distance of a clock of a piece from a line, in ns."""
    return limits.grain_ns + limits.wander_ppm * 1e-6 * limits.piece_seconds * 1e9 / 2


def _floats(values: Times) -> Floats:
    return values.astype(np.float64)

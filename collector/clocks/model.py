"""A rank's clock in terms of a reference, with a bound of the error at every time."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from stepscope.collector.clocks.piece import Floats, Piece, Times
from stepscope.runtime import _core
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.events.record import Block

UNKNOWN = float("inf")
"""The error where nothing is known of it."""


class Placed(msgspec.Struct, frozen=True):
    """A piece, and how its collector's clock lies to the reference."""

    piece: Piece
    low: int
    """ns that the collector's clock is ahead of the reference, at least."""
    high: int
    """The same, at most."""


class ClockModel:
    """Maps times of a rank's monotonic clock to the reference. The map grows everywhere, so what nests goes on nesting.

    Between the beginnings and ends of its pieces it is straight, and there in the middle of what is possible.
    """

    def __init__(self, pieces: Sequence[Placed], fallback: ClockAnchor, *, is_connected: bool = True) -> None:
        """
        Args:
            pieces: what was measured, in any order; may be none.
            fallback: the rank's wall clock, which counts if nothing was measured.
            is_connected: whether the pieces determine the rank's offset.
        """
        self._pieces = sorted(pieces, key=lambda placed: (placed.piece.start, placed.piece.end))
        self.is_connected = is_connected and bool(pieces)
        """Whether there is a bound at all."""
        if self._pieces:
            self._base = self._pieces[0].piece.base - self._pieces[0].low
            self._make_knots()
        else:
            self._base = fallback.wall_ns - fallback.monotonic_ns
            self._knots, self._values = np.array([fallback.monotonic_ns], np.int64), np.zeros(1)
            self._before = self._after = 0.0

    def to_reference(self, at: Times) -> Times:
        """The reference's ns for ns of the rank's monotonic clock."""
        return at + self._base + np.rint(self._offsets(at)).astype(np.int64)

    def align(self, events: Block) -> bool:
        """Gives events the reference's times, in place, as `to_reference` has them. What nested before nests afterwards, to the
        nanosecond. Returns whether any event is of a flow."""
        return _core.align(events, self._knots, self._values, self._base, self._before, self._after)

    def error(self, at: Times) -> Floats:
        """The most that `to_reference` may be off, in ns; `UNKNOWN` where nothing bounds it."""
        if not self.is_connected:
            return np.full(len(at), UNKNOWN)
        low, high = self._possible(at)
        chosen = self._offsets(at)
        return np.maximum(high - chosen, chosen - low) + 1.0

    def drift_ppm(self, at: int) -> tuple[float, float]:
        """By how much the reference gains on the rank's clock around a time, and what that may be off: parts per million."""
        if not self._pieces:
            return 0.0, UNKNOWN
        low, high = self._pieces[int(self._nearest(np.array([at], np.int64))[0])].piece.slopes
        return (low + high) / 2 * 1e6, (high - low) / 2 * 1e6

    def _make_knots(self) -> None:
        knots = np.unique(np.array([(p.piece.start, p.piece.end) for p in self._pieces], np.int64))
        low, high = self._possible(knots)
        values = (low + high) / 2
        for index in range(1, len(knots)):
            # Even where the pieces say nonsense, time does not run backwards.
            values[index] = max(values[index], values[index - 1] - 0.5 * float(knots[index] - knots[index - 1]))
        self._knots, self._values = knots, values
        self._before, self._after = sum(self._pieces[0].piece.slopes) / 2, sum(self._pieces[-1].piece.slopes) / 2

    def _offsets(self, at: Times) -> Floats:
        first, last = int(self._knots[0]), int(self._knots[-1])
        knots: Floats = (self._knots - first).astype(np.float64)
        times: Floats = (at - first).astype(np.float64)
        extrapolated: Floats = self._before * np.minimum(at - first, 0) + self._after * np.maximum(at - last, 0)
        inside: Floats = np.asarray(np.interp(times, knots, self._values), np.float64)
        return inside + extrapolated

    def _possible(self, at: Times) -> tuple[Floats, Floats]:
        """The lowest and the highest offset at each time, in ns more than the base: what the nearest pieces leave."""
        low, high = np.empty(len(at)), np.empty(len(at))
        which = self._nearest(at)
        for index in np.unique(which).tolist():
            where = np.flatnonzero(which == index)
            lowest, highest = self._reach(index, at[where])
            for neighbour in (index - 1, index + 1):
                if not 0 <= neighbour < len(self._pieces):
                    continue
                its_low, its_high = self._reach(neighbour, at[where])
                apart = np.maximum(lowest, its_low) > np.minimum(highest, its_high)
                # Pieces that contradict each other: one is wrong, and nobody knows which.
                lowest, highest = (
                    np.where(apart, np.minimum(lowest, its_low), np.maximum(lowest, its_low)),
                    np.where(apart, np.maximum(highest, its_high), np.minimum(highest, its_high)),
                )
            low[where], high[where] = lowest, highest
        return low, high

    def _nearest(self, at: Times) -> Times:
        ends = np.array([placed.piece.end for placed in self._pieces], np.int64)
        starts = np.array([placed.piece.start for placed in self._pieces], np.int64)
        borders = ends[:-1] + (starts[1:] - ends[:-1]) // 2
        return np.asarray(np.searchsorted(np.maximum.accumulate(borders), at), np.int64)

    def _reach(self, index: int, at: Times) -> tuple[Floats, Floats]:
        placed = self._pieces[index]
        low, high = placed.piece.reach(at)
        base = placed.piece.base - self._base
        return low + float(base - placed.high), high + float(base - placed.low)

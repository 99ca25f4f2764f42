"""Round trips between a rank and a collector's clock, and stretches of time (pieces) in which a clock counts as steady. The
bounds are true while clocks keep to the limits below; `docs/clocks.md` has them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.runtime.journal.records import ClockSync

DRIFT = 500e-6
"""The largest difference between the rates of two clocks. Crystals keep to 100e-6, NTP may correct one by 500e-6."""
PIECE_SECONDS = 240.0
"""A clock counts as steady for so long."""
WANDER = 0.05e-6
"""The largest difference of the rate from its mean within a piece."""
CHANGE = 5e-6
"""The largest difference of the rate from a piece's where nothing is measured: before it, after it, or while the collector is away."""
GRAIN_NS = 1
"""The clocks' resolution."""
_SLACK = GRAIN_NS + WANDER * PIECE_SECONDS * 1e9 / 2
"""The largest distance of a clock of a piece from a line, in ns."""
_TINY = 1e-3
"""A distance in ns that is far larger than rounding in double precision."""

Times = NDArray[np.int64]
Floats = NDArray[np.float64]

_FAR = 1 << 61
"""A time in ns that no clock shows; differences of such differences still fit 64 bits."""


class RoundTrips(msgspec.Struct, frozen=True):
    """Round trips to one clock, in the order in which they were begun. All in ns."""

    sent: Times
    """Times by the rank's clock, like `returned`."""
    arrived: Times
    """Times by the collector's clock, like `answered`."""
    answered: Times
    returned: Times
    refused: int
    """Round trips that contradict themselves: a clock ran backwards, or the record was damaged."""

    def __len__(self) -> int:
        return len(self.sent)

    @classmethod
    def of(cls, syncs: Iterable[ClockSync]) -> RoundTrips:
        """Round trips that were recorded, of one collector's clock."""
        rows = [(sync.sent, sync.arrived, sync.answered, sync.returned) for sync in syncs]
        table = np.array(rows, np.int64).reshape(-1, 4)
        sent, arrived, answered, returned = table.T
        good = (sent <= returned) & (arrived <= answered) & (table > -_FAR).all(axis=1) & (table < _FAR).all(axis=1)
        order = np.argsort(sent[good], kind="stable")
        columns = table[good][order].T
        return cls(columns[0], columns[1], columns[2], columns[3], int(len(table) - good.sum()))

    def part(self, where: NDArray[np.intp] | slice) -> RoundTrips:
        """Selects some of them."""
        return RoundTrips(self.sent[where], self.arrived[where], self.answered[where], self.returned[where], 0)

    def divided(self, seconds: float) -> list[RoundTrips]:
        """Parts of about equal duration, none of which spans more than `seconds` between its first and last beginning."""
        if not len(self):
            return []
        first, last = int(self.sent[0]), int(self.sent[-1])
        number = int((last - first) // max(int(seconds * 1e9), 1)) + 1
        width = (last - first) // number + 1
        which = (self.sent - first) // width
        starts = np.flatnonzero(np.diff(which, prepend=-1))
        ends = np.append(starts[1:], len(self))
        return [self.part(slice(start, end)) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]

    @property
    def shortest(self) -> int:
        """The index of the round trip that took the shortest time."""
        return int(((self.returned - self.sent) - (self.answered - self.arrived)).argmin())

    def halves(self) -> tuple[RoundTrips, RoundTrips]:
        """Divides them into a first and a second half."""
        middle = len(self) // 2
        return self.part(slice(middle)), self.part(slice(middle, None))


class Lines:
    """All lines `value = p + q * x` with bounded slope that stay below some points and above others.

    They are a convex polygon in the plane of (p, q), so what they reach at any x is found at its corners. The polygon is
    cut by the constraint that it violates most until it violates none: few of them matter, however many there are.
    """

    def __init__(self, corners: Floats) -> None:
        """Args: one row of (p, q) for each corner, in the order of the outline."""
        self._corners = corners

    @classmethod
    def between(
        cls, upper: tuple[Floats, Floats], lower: tuple[Floats, Floats], slope: float, first: int = 0
    ) -> Lines | None:
        """The lines that pass.

        Args:
            upper: (x, value) of points that no line is above; at least one.
            lower: the same of those that none is below, as many.
            slope: what a line's slope is at most, up or down.
            first: number of a pair that lies close together; the nearer it is to 0, the less is lost by rounding.

        Returns:
            `None` if no line passes.
        """
        (ux, above), (lx, below) = upper, lower
        x, high, y, low = (float(values[first]) for values in (ux, above, lx, below))
        corners = np.array(
            [
                [low + slope * y, -slope],
                [high + slope * x, -slope],
                [high - slope * x, slope],
                [low - slope * y, slope],
            ]
        )
        if (corners[0] > corners[1]).any() or (corners[3] > corners[2]).any():
            return None
        # Each row (a, b) and its c: a * p + b * q <= c.
        normals = np.concatenate([np.stack([np.ones_like(ux), ux], 1), np.stack([-np.ones_like(lx), -lx], 1)])
        limits = np.concatenate([above, -below])
        for _ in range(4 * len(limits) + 16):
            beyond = (normals @ corners.T - limits[:, None]).max(axis=1)
            worst = int(beyond.argmax())
            if beyond[worst] <= _TINY:
                break
            corners = _cut(corners, normals[worst], float(limits[worst]))
            if not len(corners):
                return None
        return cls(corners)

    def reach(self, x: Floats) -> tuple[Floats, Floats]:
        """The lowest and the highest value of any line at each x."""
        low = np.full(len(x), np.inf)
        high = np.full(len(x), -np.inf)
        for p, q in self._corners.tolist():
            value = p + q * x
            np.minimum(low, value, out=low)
            np.maximum(high, value, out=high)
        return low - _TINY, high + _TINY

    @property
    def slopes(self) -> tuple[float, float]:
        """The smallest and the largest slope."""
        return float(self._corners[:, 1].min()), float(self._corners[:, 1].max())


def _cut(corners: Floats, normal: Floats, limit: float) -> Floats:
    """Cuts off the part of a convex polygon on one side of a line."""
    beyond = corners @ normal - limit
    corners_inside: list[Floats] = []
    for index in range(len(corners)):
        here, there = float(beyond[index - 1]), float(beyond[index])
        if (here > 0) != (there > 0):
            corners_inside.append(corners[index - 1] + (corners[index] - corners[index - 1]) * (here / (here - there)))
        if there <= 0:
            corners_inside.append(corners[index])
    return np.array(corners_inside) if corners_inside else np.empty((0, 2))


class Piece:
    """Bounds of the offset between two clocks, from the round trips of a stretch.

    The offset is the collector's clock less the rank's. Where the rank's shows `sent` the collector's shows `arrived` or
    less, and where it shows `returned`, `answered` or more: nothing travels back in time. That alone bounds the line.
    """

    def __init__(self, trips: RoundTrips, base: int, lines: Lines) -> None:
        self.start, self.end = int(trips.sent[0]), int(trips.returned.max())
        """Begin and end by the rank's clock, in ns."""
        self.base = base
        """An offset in ns, to which `reach` is relative."""
        self.trips = len(trips)
        self._lines = lines

    @classmethod
    def fitted(cls, trips: RoundTrips) -> Piece | None:
        """The piece of some round trips; `None` if no steady clock within the limits has them."""
        best = trips.shortest
        base = int(trips.arrived[best]) - int(trips.sent[best])
        start = int(trips.sent[0])
        upper = _floats(trips.sent - start), _floats(trips.arrived - trips.sent - base) + _SLACK
        lower = _floats(trips.returned - start), _floats(trips.answered - trips.returned - base) - _SLACK
        lines = Lines.between(upper, lower, DRIFT, best)
        return None if lines is None else cls(trips, base, lines)

    def reach(self, at: Times) -> tuple[Floats, Floats]:
        """The lowest and the highest possible offset at each time of the rank's clock, in ns relative to `base`."""
        inside = np.clip(at, self.start, self.end)
        beyond = _floats(np.abs(at - inside))
        low, high = self._lines.reach(_floats(at - self.start))
        low, high = low - _SLACK, high + _SLACK
        if not beyond.any():
            return low, high
        # Outside its round trips the line goes on, but for what the rate may change; and no rate is beyond the limit.
        nearest_low, nearest_high = self._lines.reach(_floats(inside - self.start))
        changed, limit = CHANGE * beyond, DRIFT * beyond
        return (
            np.maximum(low - changed, nearest_low - _SLACK - limit),
            np.minimum(high + changed, nearest_high + _SLACK + limit),
        )

    @property
    def slopes(self) -> tuple[float, float]:
        """The least and the most by which the offset grows in a ns."""
        return self._lines.slopes


def pieces_of(trips: RoundTrips) -> tuple[list[Piece], int]:
    """Pieces of the round trips to one clock, in order of time, and how often the clock was found not to be steady.

    Where no line passes, the round trips are divided until one does. One that fits no clock at all is left out.
    """
    pieces: list[Piece] = []
    unsteady = 0
    waiting = trips.divided(PIECE_SECONDS)[::-1]
    while waiting:
        part = waiting.pop()
        piece = Piece.fitted(part)
        if piece is not None:
            pieces.append(piece)
            continue
        unsteady += 1
        if len(part) > 1:
            waiting += part.halves()[::-1]
    return pieces, unsteady


def _floats(values: Times) -> Floats:
    return values.astype(np.float64)

"""The set of all straight lines that keep to given bounds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_TINY = 1e-3
"""ns. What rounding in double precision may amount to, by far."""


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
    """The part of a convex polygon on one side of a line."""
    beyond = corners @ normal - limit
    corners_inside: list[Floats] = []
    for index in range(len(corners)):
        here, there = float(beyond[index - 1]), float(beyond[index])
        if (here > 0) != (there > 0):
            corners_inside.append(corners[index - 1] + (corners[index] - corners[index - 1]) * (here / (here - there)))
        if there <= 0:
            corners_inside.append(corners[index])
    return np.array(corners_inside) if corners_inside else np.empty((0, 2))

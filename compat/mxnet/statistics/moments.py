"""Sums, spread and quantiles of numbers that stream by, in bounded memory."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

EXACT = 4096
"""Different values that are kept apart exactly; from then on they are rounded to one part in 256."""


class Values:
    """Count, total, mean, standard deviation, minimum and maximum (Chan et al. 1979, "Updating formulae"), and quantiles.

    Quantiles are exact up to `EXACT` different values, else off by one part in 512 at most.
    """

    __slots__ = ("_counts", "_rounds", "count", "m2", "max", "mean", "min", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.mean = 0.0
        self.m2 = 0.0
        """Sum of the squared distances from the mean."""
        self.min = math.inf
        self.max = -math.inf
        self._counts: Counter[float] = Counter()
        self._rounds = False

    def add(self, values: NDArray[np.float64]) -> None:
        """Adds finite values, of which there is at least one."""
        count, mean = len(values), float(values.mean())
        apart = mean - self.mean
        both = self.count + count
        self.m2 += float(np.square(values - mean).sum()) + apart * apart * self.count * count / both
        self.mean += apart * count / both
        self.count = both
        self.total += float(values.sum())
        self.min = min(self.min, float(values.min()))
        self.max = max(self.max, float(values.max()))
        self._counts.update((_rounded(values) if self._rounds else values).tolist())
        if len(self._counts) > EXACT and not self._rounds:
            self._rounds = True
            before, self._counts = self._counts, Counter()
            for value, rounded in zip(before, _rounded(np.array(list(before))).tolist(), strict=True):
                self._counts[rounded] += before[value]

    @property
    def std(self) -> float:
        """The standard deviation of the values themselves, not an estimate of what they are a sample of."""
        return math.sqrt(self.m2 / self.count) if self.count else math.nan

    def quantiles(self, *shares: float) -> tuple[float, ...]:
        """The value of the nearest rank for each share, `nan` without values."""
        if not self.count:
            return (math.nan,) * len(shares)
        known = sorted(self._counts)
        upto: Any = np.cumsum([self._counts[value] for value in known])
        ranks = [max(math.ceil(share * self.count), 1) for share in shares]
        return tuple(min(max(known[int(np.searchsorted(upto, rank))], self.min), self.max) for rank in ranks)


def _rounded(values: NDArray[np.float64]) -> NDArray[np.float64]:
    mantissa, exponent = np.frexp(values)
    rounded: NDArray[np.float64] = np.ldexp(np.round(mantissa * 512) / 512, exponent)
    return rounded

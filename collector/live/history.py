"""Step times over a whole run in the memory of a few hundred."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

BUCKETS = 512
_FEW = 4
"""Samples that are added one by one, which is faster then."""
WIDTH_NS = 250_000_000
"""Of a bucket at first. All widths are this times a power of two, and borders are multiples of the width: histories
of several ranks can be laid over each other."""


class Sums(NamedTuple):
    """The buckets of a history that hold something, at one moment."""

    width_ns: int
    at: NDArray[np.int64]
    """Their indices."""
    counts: NDArray[np.int64]
    totals: NDArray[np.float64]

    def means(self, width_ns: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Indices of the buckets of this width, a multiple of theirs, that hold something; their mean durations in ns."""
        if width_ns == self.width_ns or not len(self.at):
            return self.at, self.totals / self.counts
        index = self.at // (width_ns // self.width_ns)
        first = int(index[0])
        counts = np.bincount(index - first, self.counts)
        totals = np.bincount(index - first, self.totals)
        there: Any = np.flatnonzero(counts)
        return there + first, totals[there] / counts[there]


class History:
    """The mean duration for each stretch of time. Not for two threads at once.

    When the time since the first sample no longer fits, either two neighbouring buckets become one, again and again, or
    the oldest are let go.
    """

    def __init__(self, *, rolling: bool, width_ns: int = WIDTH_NS) -> None:
        """Args: whether the oldest are let go; how wide a bucket is at first."""
        self.width_ns = width_ns
        self.first = 0
        """Index of the first bucket: its time divided by the width."""
        self._rolling = rolling
        self._empty = True
        self._counts: NDArray[np.int64] = np.zeros(BUCKETS, np.int64)
        self._totals: NDArray[np.float64] = np.zeros(BUCKETS)

    def add(self, times: NDArray[np.int64], durations: NDArray[np.int64]) -> None:
        """Adds durations, each at a time, both in ns. What is before the first bucket counts in it, or not if it was let go."""
        if not len(times):
            return
        if len(times) <= _FEW:
            for time, duration in sorted(zip(times.tolist(), durations.tolist(), strict=True)):
                self.add_one(time, duration)
            return
        if self._empty:
            self.first, self._empty = int(times.min()) // self.width_ns, False
        latest = int(times.max())
        if self._rolling:
            self._shift(latest // self.width_ns - self.first - (BUCKETS - 1))
        while latest // self.width_ns - self.first >= BUCKETS:
            self._widen()
        at = times // self.width_ns - self.first
        if self._rolling:
            durations, at = durations[at >= 0], at[at >= 0]
        at = np.maximum(at, 0)
        np.add.at(self._counts, at, 1)
        np.add.at(self._totals, at, durations)

    def add_one(self, time: int, duration: int) -> None:
        """Adds one duration."""
        if self._empty:
            self.first, self._empty = time // self.width_ns, False
        if self._rolling:
            self._shift(time // self.width_ns - self.first - (BUCKETS - 1))
        while time // self.width_ns - self.first >= BUCKETS:
            self._widen()
        at = time // self.width_ns - self.first
        if at >= 0 or not self._rolling:
            self._counts[max(at, 0)] += 1
            self._totals[max(at, 0)] += duration

    def sums(self) -> Sums:
        """Copies the buckets that are in use."""
        used: NDArray[np.int64] = np.flatnonzero(self._counts)
        return Sums(self.width_ns, used + self.first, self._counts[used], self._totals[used])

    def _shift(self, by: int) -> None:
        if by <= 0:
            return
        for values in (self._counts, self._totals):
            newest = values[by:].copy()
            values[: len(newest)] = newest
            values[len(newest) :] = 0
        self.first += by

    def _widen(self) -> None:
        at = (np.arange(BUCKETS) + self.first) // 2 - self.first // 2
        for values in (self._counts, self._totals):
            merged = np.bincount(at, values, minlength=BUCKETS)
            values[:] = merged[:BUCKETS]
        self.first //= 2
        self.width_ns *= 2

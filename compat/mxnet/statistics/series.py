"""Values of one counter, and passes of one frame, in bounded memory.

Durations are added up by the runtime's aggregates. Those have no quantiles, standard deviation and mean over time of counters,
whose values may be of any sign and scale, so these are added up here.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.runtime.display.text_table import human_number, human_time
from stepscope.runtime.settings.documented import Documented

EXACT = 4096
"""Different values that are kept apart exactly; from then on they are rounded to one part in 256."""
MOST_PASSES = 10_000
"""Passes of a frame that are listed; earlier ones are in its statistics only."""


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

    def numbers(self) -> tuple[float, ...]:
        """Total, minimum, maximum, mean, standard deviation, and the quantiles of 50, 95 and 99 percent."""
        return self.total, self.min, self.max, self.mean, self.std, *self.quantiles(0.50, 0.95, 0.99)

    def quantiles(self, *shares: float) -> tuple[float, ...]:
        """The value of the nearest rank for each share, `nan` without values."""
        if not self.count:
            return (math.nan,) * len(shares)
        values = sorted(self._counts)
        upto: Any = np.cumsum([self._counts[value] for value in values])
        ranks = [max(math.ceil(share * self.count), 1) for share in shares]
        return tuple(min(max(values[int(np.searchsorted(upto, rank))], self.min), self.max) for rank in ranks)


def _rounded(values: NDArray[np.float64]) -> NDArray[np.float64]:
    mantissa, exponent = np.frexp(values)
    rounded: NDArray[np.float64] = np.ldexp(np.round(mantissa * 512) / 512, exponent)
    return rounded


class FramePass(Documented, frozen=True, gc=False):
    """One pass of a frame."""

    number: int
    """From 0, in the order in which passes began."""
    start_ns: int
    """When it began, ns of the monotonic clock."""
    duration_ns: int
    """How long it took."""
    rate: float
    """Passes per second: the inverse of the time since the one before began; `nan` for the first."""

    def __str__(self) -> str:
        """For people: `pass 5: 5.24ms, 79.93 passes per second`; the first has no rate."""
        rate = "" if math.isnan(self.rate) else f", {human_number(self.rate)} passes per second"
        return f"pass {self.number}: {human_time(self.duration_ns)}{rate}"


class SpanSeries:
    """The passes of one frame."""

    def __init__(self) -> None:
        self.passes: deque[tuple[int, int, int]] = deque(maxlen=MOST_PASSES)
        """(number, start, duration)."""
        self.first_start, self.last_start = 0, 0
        self.numbered = 0

    def add_passes(self, passes: list[tuple[int, int, int]]) -> None:
        """Adds passes, in the order in which they ended."""
        for one in passes:
            start = one[1]
            self.first_start = min(self.first_start, start) if self.numbered else start
            self.last_start = max(self.last_start, start)
            self.numbered += 1
        self.passes.extend(passes)

    @property
    def rate(self) -> float:
        """Passes per second from the begin of the first to that of the last; `nan` for fewer than two."""
        seconds = (self.last_start - self.first_start) / 1e9
        return (self.numbered - 1) / seconds if self.numbered > 1 and seconds > 0 else math.nan

    def listed(self) -> tuple[FramePass, ...]:
        """The passes, in order."""
        ordered = sorted(self.passes, key=lambda one: one[1])
        before = [None, *(start for _, start, _ in ordered)]
        return tuple(
            FramePass(number, start, took, math.nan if last is None or start <= last else 1e9 / (start - last))
            for (number, start, took), last in zip(ordered, before, strict=False)
        )


class CounterSeries:
    """Values of one counter, and their mean over the time for which each held."""

    def __init__(self) -> None:
        self.values = Values()
        self.last = math.nan
        self._at = 0
        self._area = 0.0
        self._seconds = 0.0

    def add(self, times: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Adds finite values and their times in ns, in any order."""
        self.values.add(values)
        order = np.argsort(times, kind="stable")
        times, values = times[order], values[order]
        if self.values.count > len(values):  # what came late is taken to have come at the time of the latest
            times = np.maximum(np.concatenate([[self._at], times]), self._at)
            values = np.concatenate([[self.last], values])
        seconds = np.diff(times) / 1e9
        self._area += float((values[:-1] * seconds).sum())
        self._seconds += float(seconds.sum())
        self._at, self.last = int(times[-1]), float(values[-1])

    @property
    def weighted(self) -> float:
        """The mean over the time from the first value to the last; the plain mean where no time passed."""
        return self._area / self._seconds if self._seconds > 0 else self.values.mean

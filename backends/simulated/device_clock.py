"""The clock of a simulated accelerator, read as a real backend would read it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from stepscope.backends.simulated.workload import chance
from stepscope.runtime.events.clock import ClockMapping

READINGS = 64
"""Pairs of readings that the mapping is fitted to; older ones are forgotten, as real clocks change their rate."""


class DeviceClock:
    """A clock that is off by `skew` ns, drifts by `drift` ppm, and can be read with an error of up to `error` ns."""

    def __init__(self, ours: Callable[[], int], skew: int, drift: float, error: int, seed: int) -> None:
        self._ours, self._skew, self._rate, self._error, self._seed = ours, skew, drift * 1e-6, error, seed
        self._origin = ours()
        self._count = 0
        self._pairs: deque[tuple[int, int, int]] = deque(maxlen=READINGS)
        self.mapping = ClockMapping(0, 0)
        """As fitted to the readings so far. An event between the first and the last of them is mapped to within
        `error_ns` of its true time: the fit is off by a linear function, which is largest at an end, and there by at
        most what that pair is off the line plus that pair's own error."""
        self.read()

    def stamp(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """The device's times for these times of the process."""
        drifted: NDArray[np.int64] = np.rint((times - self._origin) * self._rate).astype(np.int64)
        return times + (drifted + self._skew)

    def read(self) -> None:
        """Reads both clocks together and fits the mapping anew.

        Of a few tries the one counts that took the shortest: a thread that is put aside in between spoils a reading.
        """
        tries: list[tuple[int, int, int]] = []
        for _ in range(3):
            self._count += 1
            before = self._ours()
            theirs = int(self.stamp(np.array([self._ours()], np.int64))[0])
            after = self._ours()
            theirs += round((2 * chance(self._seed, self._count) - 1) * self._error)
            tries.append((after - before, theirs, (before + after) // 2))
        took, theirs, ours = min(tries)
        self._pairs.append((theirs, ours, took + self._error + 1))
        self.mapping = ClockMapping.fit(list(self._pairs))

    def to_ours(self, theirs: NDArray[np.int64]) -> NDArray[np.int64]:
        """`ClockMapping.to_ours` for many stamps. Differences are small enough for doubles to hold them exactly."""
        mapping = self.mapping
        since: NDArray[np.int64] = np.rint((theirs - mapping.theirs_ns) * mapping.rate).astype(np.int64)
        return since + mapping.ours_ns

    def durations_to_ours(self, theirs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Durations of the device's clock in ours; at least 1 ns."""
        ours: NDArray[np.int64] = np.rint(theirs * self.mapping.rate).astype(np.int64)
        return np.maximum(ours, 1)

    def describe(self) -> str:
        """The mapping in words, for the trust report."""
        mapping = self.mapping
        return (
            f"the device's own clock, mapped to CLOCK_MONOTONIC by {len(self._pairs)} paired readings: "
            f"rate {mapping.rate:.9f}, error <= {mapping.error_ns} ns"
        )

"""A running quantile of step times that forgets old ones, in fixed memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BUCKETS_PER_OCTAVE = 32
"""A quantile is off by less than 1/32 of an octave: 2.2 %."""
_OCTAVES = 64
MEMORY = 512
"""Number of times after which old ones count half."""


class RunningQuantile:
    """A histogram of times with buckets of equal ratio.

    Whenever `MEMORY` times were added, all counts are halved: what was seen before the last few hundred steps hardly
    counts, so the quantile follows a run whose steps become longer or shorter.
    """

    def __init__(self) -> None:
        self._counts: NDArray[np.float64] = np.zeros(_OCTAVES * BUCKETS_PER_OCTAVE)
        self._since = 0
        self.count = 0
        """Times added."""

    def add(self, times: NDArray[np.int64]) -> None:
        """Adds times in ns."""
        for start in range(0, len(times), MEMORY):
            part = times[start : start + MEMORY]
            at = np.log2(np.maximum(part, 1).astype(np.float64)) * BUCKETS_PER_OCTAVE
            np.add.at(self._counts, at.astype(np.int64), 1.0)
            self.count += len(part)
            self._since += len(part)
            if self._since >= MEMORY:
                self._since = 0
                self._counts *= 0.5

    def at(self, quantile: float) -> float:
        """The time in ns that this share of the times does not exceed; 0 before any was added."""
        total = float(self._counts.sum())
        if not total:
            return 0.0
        bucket = int(np.searchsorted(np.cumsum(self._counts), quantile * total))
        return float(2 ** ((min(bucket, len(self._counts) - 1) + 0.5) / BUCKETS_PER_OCTAVE))

"""A running quantile of step times."""

from __future__ import annotations

from collections import deque
from math import ceil

import numpy as np
from numpy.typing import NDArray

MEMORY = 512
"""Number of times that count: the quantile follows a run whose steps become longer or shorter."""


class RunningQuantile:
    """The quantiles of the last `MEMORY` times."""

    def __init__(self) -> None:
        self._times: deque[int] = deque(maxlen=MEMORY)
        self.count = 0
        """Times added."""

    def add(self, times: NDArray[np.int64]) -> None:
        """Adds times in ns."""
        self._times.extend(times[-MEMORY:].tolist())
        self.count += len(times)

    def at(self, quantile: float) -> int:
        """The time in ns that this share of the times does not exceed; 0 before any was added."""
        return sorted(self._times)[ceil(quantile * len(self._times)) - 1] if self._times else 0

"""Stretches of time that do not overlap: what was covered by something, whatever else nested or overlapped in it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]


class Stretches:
    """The newest stretches, in ns. Not for two threads at once."""

    def __init__(self, most: int) -> None:
        """Args: how many are kept."""
        self._most = most
        self._starts: Times = np.empty(0, np.int64)
        self._ends: Times = np.empty(0, np.int64)
        self.complete_from: int | None = None
        """Before this some were let go; `None`: none was."""

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, starts: Times, ends: Times) -> None:
        """Adds what lies between each start and its end; those that end before they start are passed over."""
        right = ends >= starts
        if not right.any():
            return
        starts = np.concatenate([self._starts, starts[right]])
        ends = np.concatenate([self._ends, ends[right]])
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], np.maximum.accumulate(ends[order])
        begins = np.concatenate([[True], starts[1:] > ends[:-1]])
        self._starts = starts[begins]
        self._ends = ends[np.concatenate([begins[1:], [True]])]
        if len(self._starts) > self._most:
            self._starts, self._ends = self._starts[-self._most :].copy(), self._ends[-self._most :].copy()
            self.complete_from = int(self._starts[0])

    def within(self, starts: Times, ends: Times) -> Times:
        """How much of each stretch that is asked for lies in ours, in ns."""
        return self._before(ends) - self._before(starts)

    def _before(self, times: Times) -> Times:
        """How much of ours lies before each time."""
        if not len(self._starts):
            return np.zeros(len(times), np.int64)
        total = np.concatenate([[0], np.cumsum(self._ends - self._starts)])
        at = np.searchsorted(self._starts, times, side="right")
        last = np.maximum(at - 1, 0)
        beyond = np.where(at > 0, np.maximum(self._ends[last] - times, 0), 0)
        found: Times = total[at] - beyond
        return found

"""The step marks of the last steps, from which windows in the past get their borders."""

from __future__ import annotations

import numpy as np

from stepscope.runtime.events.record import Block, empty_block, join_blocks
from stepscope.runtime.flight.triggers.trigger import StepTimes
from stepscope.runtime.windows.step_marks import StepMark


class StepLog:
    """The marks of the last steps. They are numbered from 0 in the order of their times, independent of `step_num`."""

    def __init__(self, capacity: int) -> None:
        """Args: number of ended steps to retain, in addition to the current one."""
        self._capacity = capacity
        self._marks: Block = empty_block()
        self._first = 0
        self._judged = 0

    def __len__(self) -> int:
        return len(self._marks)

    @property
    def first(self) -> int:
        """Number of the oldest retained mark."""
        return self._first

    @property
    def end(self) -> int:
        """The number after that of the latest step."""
        return self._first + len(self._marks)

    def add(self, marks: Block) -> None:
        """Adds marks. Known marks are ignored."""
        if not len(marks):
            return
        if len(self._marks) and int(marks["ts"].min()) <= int(self._marks["ts"][-1]):
            marks = marks[(marks["ts"] >= self._marks["ts"][0]) & ~np.isin(marks["ts"], self._marks["ts"])]
        joined = join_blocks([self._marks, marks])
        self._marks = joined[np.argsort(joined["ts"], kind="stable")]

    def mark(self, number: int) -> StepMark:
        row = self._marks[number - self._first]
        return StepMark(int(row["ts"]), int(row["step"]), int(row["track"]), int(row["parent"]))

    def find(self, at: int) -> int:
        """Number of the step that a time, in ns, belongs to; of the oldest for times before it."""
        return self._first + max(int(np.searchsorted(self._marks["ts"], at, side="right")) - 1, 0)

    def since(self, at: int) -> Block:
        """The marks later than a time, in ns, as events."""
        later: Block = self._marks[self._marks["ts"] > at]
        return later

    def ended(self, until: int) -> StepTimes:
        """Steps that ended by `until`, in ns, each once."""
        begin = max(self._judged - self._first, 0)
        stop = int(np.searchsorted(self._marks["ts"], until, side="right"))
        rows = self._marks[begin:stop]
        self._judged = max(self._judged, self._first + stop - 1)
        ts = rows["ts"].astype(np.int64)
        return StepTimes(rows["step"][:-1].astype(np.int64), ts[:-1], ts[1:])

    def trim(self, until: int) -> int:
        """Removes steps older than the last ones at a time, in ns. Returns the time from which on steps are retained."""
        if not len(self._marks):
            return 0
        surplus = max(int(np.searchsorted(self._marks["ts"], until, side="right")) - self._capacity - 1, 0)
        horizon = int(self._marks["ts"][surplus])
        # Removal waits for a surplus of half the capacity, so that marks are seldom copied.
        if surplus > self._capacity // 2 + 64:
            self._marks = self._marks[surplus:].copy()
            self._first += surplus
        return horizon

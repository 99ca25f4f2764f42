"""When the last steps began: what a window that is opened afterwards is measured by."""

from __future__ import annotations

import numpy as np

from stepscope.runtime.events.record import Block, empty_block, join_blocks
from stepscope.runtime.flight.triggers.trigger import StepTimes
from stepscope.runtime.windows.step_marks import StepMark


class StepLog:
    """The marks of the last steps, numbered from 0 in the order of their times, whatever numbers the steps have."""

    def __init__(self, keep: int) -> None:
        """Args: steps that ended and are kept, besides the one under way."""
        self._keep = keep
        self._marks: Block = empty_block()
        self._first = 0
        self._judged = 0

    def __len__(self) -> int:
        """Marks that are kept."""
        return len(self._marks)

    @property
    def first(self) -> int:
        """Number of the oldest mark that is kept."""
        return self._first

    @property
    def end(self) -> int:
        """One more than the number of the latest."""
        return self._first + len(self._marks)

    def add(self, marks: Block) -> None:
        """Adds marks; those that are known already change nothing."""
        if not len(marks):
            return
        if len(self._marks) and int(marks["ts"].min()) <= int(self._marks["ts"][-1]):
            marks = marks[(marks["ts"] >= self._marks["ts"][0]) & ~np.isin(marks["ts"], self._marks["ts"])]
        joined = join_blocks([self._marks, marks])
        self._marks = joined[np.argsort(joined["ts"], kind="stable")]

    def mark(self, number: int) -> StepMark:
        """A mark that is kept."""
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
        """Lets go of steps older than the last ones at a time, in ns; the time from which on steps are kept."""
        if not len(self._marks):
            return 0
        surplus = max(int(np.searchsorted(self._marks["ts"], until, side="right")) - self._keep - 1, 0)
        horizon = int(self._marks["ts"][surplus])
        # Half as many again may gather, so that each look copies few.
        if surplus > self._keep // 2 + 64:
            self._marks = self._marks[surplus:].copy()
            self._first += surplus
        return horizon

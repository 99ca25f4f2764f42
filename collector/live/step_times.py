"""The step times of one stream, in bounded memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.collector.live.history import History
from stepscope.runtime.events.record import Block, Flag, Kind

RECENT = 256
"""Steps that are kept one by one."""
RECENT_WIDTH_NS = 500_000_000
"""Of a bucket of the last minutes."""


class StepTimes:
    """The newest steps one by one, the last four minutes and the whole run as means. Not for two threads at once."""

    def __init__(self) -> None:
        self.count = 0
        """Whole steps seen."""
        self.last: int | None = None
        """Number of the newest."""
        self.recent = History(rolling=True, width_ns=RECENT_WIDTH_NS)
        self.all = History(rolling=False)
        self._numbers: NDArray[np.int64] = np.zeros(RECENT, np.int64)
        self._durations: NDArray[np.int64] = np.zeros(RECENT, np.int64)
        self._starts: NDArray[np.int64] = np.zeros(RECENT, np.int64)

    def add(self, events: Block, offset_ns: int, earliest_ns: int, latest_ns: int) -> None:
        """Adds the steps among the events of the source `steps`; those that were cut or have not ended do not count.

        Args:
            events: in the order of their times.
            offset_ns: from their clock to Unix time.
            earliest_ns: Unix time; what claims to be earlier is taken for this.
            latest_ns: likewise.
        """
        whole = (events["kind"] == int(Kind.SPAN)) & (events["flags"] & int(Flag.CLIPPED | Flag.OPEN) == 0)
        steps = events[whole & (events["dur"] >= 0)]
        if not len(steps):
            return
        starts, durations = steps["ts"].astype(np.int64), steps["dur"].astype(np.int64)
        with np.errstate(over="ignore"):
            ends = np.clip(starts + durations + np.int64(offset_ns), earliest_ns, latest_ns)
        self.recent.add(ends, durations)
        self.all.add(ends, durations)
        at = (self.count + np.arange(len(steps))[-RECENT:]) % RECENT
        self._numbers[at], self._durations[at] = steps["step"][-RECENT:], durations[-RECENT:]
        self._starts[at] = starts[-RECENT:]
        self.count += len(steps)
        self.last = int(steps["step"][-1])

    def newest(self, most: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Numbers, beginnings and durations in ns of the newest steps, `most` of them, the newest last."""
        count = min(self.count, most, RECENT)
        at = np.arange(self.count - count, self.count) % RECENT
        return self._numbers[at], self._starts[at], self._durations[at]

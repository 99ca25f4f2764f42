"""Round trips between a rank and a collector's clock."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.runtime.journal.records import ClockSync

Times = NDArray[np.int64]

_FAR = 1 << 61
"""ns: no clock shows so much; differences of such differences still fit."""


class RoundTrips(msgspec.Struct, frozen=True):
    """Round trips to one clock, in the order in which they were begun. All in ns."""

    sent: Times
    """By the rank's clock, as are those of `returned`."""
    arrived: Times
    """By the collector's, as are those of `answered`."""
    answered: Times
    returned: Times
    refused: int
    """Those that contradict themselves: a clock ran backwards, or the record was damaged."""

    def __len__(self) -> int:
        return len(self.sent)

    @classmethod
    def of(cls, syncs: Iterable[ClockSync]) -> RoundTrips:
        """Round trips that were recorded, of one collector's clock."""
        rows = [(sync.sent, sync.arrived, sync.answered, sync.returned) for sync in syncs]
        table = np.array(rows, np.int64).reshape(-1, 4)
        sent, arrived, answered, returned = table.T
        good = (sent <= returned) & (arrived <= answered) & (table > -_FAR).all(axis=1) & (table < _FAR).all(axis=1)
        order = np.argsort(sent[good], kind="stable")
        columns = table[good][order].T
        return cls(columns[0], columns[1], columns[2], columns[3], int(len(table) - good.sum()))

    def part(self, where: NDArray[np.intp] | slice) -> RoundTrips:
        """Some of them."""
        return RoundTrips(self.sent[where], self.arrived[where], self.answered[where], self.returned[where], 0)

    def divided(self, seconds: float) -> list[RoundTrips]:
        """Parts of about equal duration, none of which spans more than `seconds` between its first and last beginning."""
        if not len(self):
            return []
        first, last = int(self.sent[0]), int(self.sent[-1])
        number = int((last - first) // max(int(seconds * 1e9), 1)) + 1
        width = (last - first) // number + 1
        which = (self.sent - first) // width
        starts = np.flatnonzero(np.diff(which, prepend=-1))
        ends = np.append(starts[1:], len(self))
        return [self.part(slice(start, end)) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]

    @property
    def shortest(self) -> int:
        """Which of them was on its way for the shortest time."""
        return int(((self.returned - self.sent) - (self.answered - self.arrived)).argmin())

    def halves(self) -> tuple[RoundTrips, RoundTrips]:
        """The first and the second half of them."""
        middle = len(self) // 2
        return self.part(slice(middle)), self.part(slice(middle, None))

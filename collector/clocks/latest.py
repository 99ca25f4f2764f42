"""How a rank's clock compares with its collector's now, for those who look while it streams."""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from stepscope.collector.clocks.piece import DRIFT
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.journal.records import ClockSync

MAX_TRIPS = 32
"""The most round trips in memory: the newest."""
_FAR = 1 << 62
"""ns: offsets that are larger do not fit sums with times."""


class _Trip(NamedTuple):
    sent: int
    offset: int
    error: float
    """Half of the time on the way: what the offset may be off."""


class LatestClock:
    """The offset that the best of the newest round trips of one stream to the collector's latest clock says: the quickest, unless it
    is so long ago that the clocks may have drifted further apart. A merge, which knows all round trips, has smaller bounds."""

    def __init__(self, anchor: ClockAnchor) -> None:
        """Args: the rank's wall clock, which counts until there is a round trip."""
        self.first: int | None = None
        """When the collector was asked first, ns of its clock; `None`: not yet."""
        self.last = 0
        """When it was asked last."""
        offset = anchor.wall_ns - anchor.monotonic_ns
        self.offset_ns = offset if abs(offset) < _FAR else 0
        """Unix time is the rank's monotonic time plus this."""
        self.bound_ns: int | None = None
        """The most by which that was off at the end of the newest round trip; `None` where nothing bounds it."""
        self._trips: deque[_Trip] = deque(maxlen=MAX_TRIPS)
        self._clock = ""

    def add(self, sync: ClockSync) -> None:
        """A round trip, the latest."""
        self.first = sync.arrived if self.first is None else self.first
        self.last = sync.arrived
        if sync.clock != self._clock:
            self._trips.clear()  # another start of the collector
            self._clock = sync.clock
        under_way = sync.returned - sync.sent - (sync.answered - sync.arrived)
        offset = (sync.arrived - sync.sent + sync.answered - sync.returned) // 2
        if under_way < 0 or abs(offset) >= _FAR:
            return  # a clock ran backwards, or the record was damaged
        self._trips.append(_Trip(sync.sent, offset, under_way / 2))

        def bound(trip: _Trip) -> float:
            return trip.error + DRIFT * max(sync.returned - trip.sent, 0)

        best = min(self._trips, key=bound)
        self.offset_ns, self.bound_ns = best.offset, math.ceil(bound(best)) + 1

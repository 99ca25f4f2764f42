"""The collector's clock: the names that it had in all starts, and how a rank's clock compares with it now."""

from __future__ import annotations

import math
import os
import re
import uuid
from collections import deque
from pathlib import Path
from typing import NamedTuple

from stepscope.collector.clocks.piece import DRIFT
from stepscope.runtime.events import clock
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.journal.records import ClockSync

CLOCK_NAMES = "clocks"
"""Name of the file in the collector's directory with the names of its clocks, one for each start: a name a line, the newest last.
Streams may claim other clocks, and are not believed."""
_MOST_BYTES = 4 << 20
"""Bytes of the file that are read: 120,000 starts."""
_CLOCK = re.compile(rb"[0-9a-f]{32}")

MAX_TRIPS = 32
"""Round trips in memory, the newest ones."""
_FAR = 1 << 62
"""A larger offset, in ns, would overflow in sums with times."""


class ServerClock:
    """Unix time that never steps: the wall clock as it was at the start, and the monotonic clock since."""

    def __init__(self) -> None:
        self.id = uuid.uuid4().hex
        """The clock's name. It changes at each start, since the wall clock may have been set in between."""
        self._anchor = clock.ClockAnchor.read()

    def now(self) -> int:
        """ns of Unix time."""
        return self._anchor.wall(clock.now())


def add_clock_name(directory: Path, name: str) -> None:
    """Notes a clock. Raises `OSError` if the file cannot be written, or is a link."""
    file = os.open(
        directory / CLOCK_NAMES, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
    )
    with os.fdopen(file, "ab") as names:
        names.write(f"\n{name}\n".encode())  # the last line may have been cut, by a full disk


def read_clock_names(directory: Path) -> frozenset[str] | None:
    """The clocks of a collector's directory; `None` if it says nothing of them, as one of another origin. Raises
    `OSError` if the file is there and cannot be read."""
    try:
        file = os.open(directory / CLOCK_NAMES, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    with os.fdopen(file, "rb") as names:
        names.seek(max(os.fstat(file).st_size - _MOST_BYTES, 0))
        return frozenset(line.decode() for line in names.read(_MOST_BYTES).split() if _CLOCK.fullmatch(line))


class _Trip(NamedTuple):
    sent: int
    offset: int
    error: float
    """Half of the time on the way: the largest error of the offset."""


class LatestClock:
    """The offset of one stream's clock from the collector's latest one, by the best of the newest round trips: the quickest,
    unless the clocks may have drifted further apart since then. A merge, which knows all round trips, has smaller bounds."""

    def __init__(self, anchor: ClockAnchor) -> None:
        """Args: the rank's wall clock, which counts until there is a round trip."""
        self.first: int | None = None
        """The first reading of the collector's clock, in ns; `None` before it."""
        self.last = 0
        """The last reading."""
        offset = anchor.wall_ns - anchor.monotonic_ns
        self.offset_ns = offset if abs(offset) < _FAR else 0
        """Unix time is the rank's monotonic time plus this."""
        self.bound_ns: int | None = None
        """The largest error of that at the end of the newest round trip; `None` if nothing bounds it."""
        self._trips: deque[_Trip] = deque(maxlen=MAX_TRIPS)
        self._clock = ""

    def add(self, sync: ClockSync) -> None:
        """Adds a round trip, which is the latest."""
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

"""Clocks: monotonic nanoseconds of the process, anchors in wall time, and conversion of foreign clocks."""

from __future__ import annotations

import time
from bisect import bisect_right
from pathlib import Path
from typing import Annotated

import msgspec

from stepscope.runtime import _core

now = _core.now
"""`now() -> int`: CLOCK_MONOTONIC in nanoseconds, the clock of every event."""


_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/timens_offsets")


def identity() -> str:
    """Identifies CLOCK_MONOTONIC of this machine until its next boot; empty if the system does not identify it.

    Containers of a machine share its clock, unless they are in time namespaces that shift it by different amounts.
    """
    try:
        boot = _BOOT.read_text().strip()
    except OSError:
        return ""
    try:
        shifts = [line.split() for line in _NAMESPACE.read_text().splitlines()]
    except OSError:
        shifts = []  # a system without time namespaces
    shift = next((":".join(line[1:]) for line in shifts if line[:1] == ["monotonic"]), "0:0")
    return boot if shift == "0:0" else f"{boot}+{shift}"


_Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class ClockAnchor(msgspec.Struct, frozen=True):
    """Wall and monotonic clock read at the same moment."""

    monotonic_ns: _Int64
    wall_ns: _Int64
    """Unix time, UTC."""
    error_ns: _Int64
    """The two readings are at most this far apart."""

    @classmethod
    def read(cls) -> ClockAnchor:
        """Reads both clocks a few times, and returns the closest pair."""
        best: ClockAnchor | None = None
        for _ in range(5):
            before = now()
            wall = time.time_ns()
            after = now()
            if best is None or after - before < best.error_ns:
                best = cls((before + after) // 2, wall, after - before)
        assert best is not None
        return best

    def wall(self, monotonic_ns: int) -> int:
        """Unix time of a monotonic reading, by this anchor, in ns."""
        return self.wall_ns + (monotonic_ns - self.monotonic_ns)


class ClockSync(msgspec.Struct, frozen=True, kw_only=True):
    """A round trip to a collector: readings of its clock between two readings of ours. All in ns."""

    sent: _Int64
    """Our CLOCK_MONOTONIC."""
    arrived: _Int64
    """The collector's clock, Unix time."""
    answered: _Int64
    returned: _Int64
    """Our CLOCK_MONOTONIC."""
    clock: str
    """Name of the collector's clock: readings of different clocks cannot be compared."""


WALL_STEP_NS = 10_000_000
"""A smaller difference between the clocks is drift, and ignored."""

_MAX_CHANGES = 1024


class WallClock:
    """Changes of the wall clock against the monotonic clock of this process.

    The wall clock changes by NTP, by hand, and when a suspended machine wakes up, as the monotonic clock stands still then. The
    time of a change is not known exactly: it counts from the previous reading on.
    """

    def __init__(self) -> None:
        self._changes: list[tuple[int, int]] = []  # monotonic time, and the difference from then on, in ns
        self._read_at = 0

    def look(self, anchor: ClockAnchor | None = None) -> None:
        """Compares the clocks, in some µs. Any thread may call."""
        anchor = anchor or ClockAnchor.read()
        offset = anchor.wall_ns - anchor.monotonic_ns
        changes = self._changes
        if not changes:
            changes.append((anchor.monotonic_ns, offset))
        elif abs(offset - changes[-1][1]) > WALL_STEP_NS and anchor.monotonic_ns >= self._read_at:
            changes.append((self._read_at + 1, offset))
            if len(changes) > _MAX_CHANGES:
                del changes[1]
        self._read_at = anchor.monotonic_ns

    def change(self, since: int, at: int) -> int:
        """ns by which the wall clock was set between two monotonic times."""
        return 0 if len(self._changes) < 2 else self._offset(at) - self._offset(since)

    def _offset(self, at: int) -> int:
        changes = self._changes
        return changes[max(bisect_right(changes, at, key=lambda change: change[0]) - 1, 0)][1]


wall_clock = WallClock()
"""The wall clock of this process. The runtime reads it repeatedly while it records."""


def set_between(first: ClockAnchor, last: ClockAnchor) -> int:
    """ns by which the wall clock was set between two readings; 0 if drift explains the difference."""
    change = last.wall_ns - first.wall(last.monotonic_ns)
    return change if abs(change) > WALL_STEP_NS else 0


class ClockMapping(msgspec.Struct, frozen=True):
    """Maps a foreign clock to ours: `ours = ours_ns + (theirs - theirs_ns) * rate`."""

    theirs_ns: int
    ours_ns: int
    rate: float = 1.0
    error_ns: int = 0
    """Bound of the error at the pair of readings."""

    def to_ours(self, theirs_ns: int) -> int:
        """Converts a reading of their clock to ours, in ns."""
        return self.ours_ns + round((theirs_ns - self.theirs_ns) * self.rate)

    @classmethod
    def fit(cls, pairs: list[tuple[int, int, int]]) -> ClockMapping:
        """Fits offset and rate to `(theirs, ours, error)` readings in ns, each weighted by its error.

        One pair determines only the offset. Least squares around the weighted mean are exact to nanoseconds in double
        precision.

        Raises:
            ValueError: without any pair.
        """
        if not pairs:
            raise ValueError("a clock mapping needs at least one pair of readings, got none")
        theirs0, ours0, _ = pairs[0]
        weights = [1.0 / max(error, 1) ** 2 for _, _, error in pairs]
        total = sum(weights)
        mean_x = sum(w * (theirs - theirs0) for w, (theirs, _, _) in zip(weights, pairs, strict=True)) / total
        mean_y = sum(w * (ours - ours0) for w, (_, ours, _) in zip(weights, pairs, strict=True)) / total
        above = below = 0.0
        for w, (theirs, ours, _) in zip(weights, pairs, strict=True):
            x, y = theirs - theirs0 - mean_x, ours - ours0 - mean_y
            above += w * x * y
            below += w * x * x
        rate = above / below if below > 0 else 1.0
        at = theirs0 + round(mean_x)
        mapping = cls(at, ours0 + round(mean_y), rate, 0)
        worst = max(abs(mapping.to_ours(theirs) - ours) + error for theirs, ours, error in pairs)
        return msgspec.structs.replace(mapping, error_ns=worst)

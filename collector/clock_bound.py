"""What the collector knows of a rank's clock, of the round trips in its stream."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from stepscope.runtime.journal.records import ClockSync

KEPT = 64
"""Round trips of a stream that are kept."""


class ClockBound(msgspec.Struct, frozen=True, gc=False):
    """Unix time of the collector is the rank's monotonic time plus `offset_ns`, give or take `bound_ns`."""

    offset_ns: int
    bound_ns: int


def clock_bound(syncs: Iterable[ClockSync]) -> ClockBound | None:
    """What the best of these round trips says, all with one clock of the collector; `None` without any that makes sense."""
    best: ClockBound | None = None
    for sync in syncs:
        away = (sync.returned - sync.sent) - (sync.answered - sync.arrived)
        if away < 0 or sync.answered < sync.arrived:
            continue
        bound, offset = (away + 1) // 2, (sync.arrived + sync.answered) // 2 - (sync.sent + sync.returned) // 2
        if abs(offset) < 1 << 62 and (best is None or bound < best.bound_ns):
            best = ClockBound(offset, bound)
    return best

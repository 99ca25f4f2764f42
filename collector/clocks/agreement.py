"""Whether what two processes measured can be of one clock."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from stepscope.collector.clocks.limits import ClockLimits
from stepscope.collector.clocks.piece import Piece, pieces_of
from stepscope.collector.clocks.round_trips import RoundTrips
from stepscope.runtime.journal.records import ClockSync

Pieces = Mapping[str, Sequence[Piece]]
"""By the collector's clock, in order of time."""

LEEWAY_NS = 50_000.0
"""Two that are apart by less than this, and what both leave open, are taken for one all the same: clocks keep to their limits
about, and who reads one clock is known to be exactly in order."""


def pieces_by_clock(syncs: Iterable[ClockSync], limits: ClockLimits) -> Pieces:
    """Pieces of the clocks with which one process was compared, by clock."""
    by_clock: dict[str, list[ClockSync]] = {}
    for sync in syncs:
        by_clock.setdefault(sync.clock, []).append(sync)
    return {clock: pieces_of(RoundTrips.of(its), limits)[0] for clock, its in by_clock.items()}


def contradict(one: Pieces, other: Pieces) -> bool:
    """Whether no clock can have shown both: what one leaves possible is far from what the other does."""
    return any(_apart(piece, other[clock]) for clock in one.keys() & other.keys() for piece in one[clock])


def _apart(piece: Piece, others: Sequence[Piece]) -> bool:
    """Whether a piece is far from the one of the others that is nearest in time."""
    if not others:
        return False
    at = bisect_left(others, piece.start, key=lambda other: other.start)
    near = min(others[max(at - 1, 0) : at + 1], key=lambda other: _between(piece, other))
    times = np.array([piece.start, (piece.start + piece.end) // 2, piece.end], np.int64)
    low, high = piece.reach(times)
    its_low, its_high = (reach + float(near.base - piece.base) for reach in near.reach(times))
    gap = np.maximum(low, its_low) - np.minimum(high, its_high)
    return bool((gap > (high - low) + (its_high - its_low) + LEEWAY_NS).any())


def _between(one: Piece, other: Piece) -> int:
    """Time between two pieces, 0 if they overlap."""
    return max(one.start - other.end, other.start - one.end, 0)

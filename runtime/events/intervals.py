"""Cuts events at the borders of intervals: pure functions over blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.runtime.events.record import Block, Flag, Kind, join_blocks

Interval = tuple[int, int]
"""`[start, end)` in ns."""

FOREVER = np.iinfo(np.int64).max
_SPAN, _GAP = int(Kind.SPAN), int(Kind.GAP)
Mask = NDArray[np.bool_]


def ends(events: Block) -> NDArray[np.int64]:
    """The end of each event, in ns. An event without duration ends when it begins."""
    end: Any = events["ts"] + np.where(has_duration(events), events["dur"], 0)
    return end  # type: ignore[no-any-return]


def has_duration(events: Block) -> Mask:
    """Whether each event is a span or a gap."""
    kind: Any = events["kind"]
    long: Mask = (kind == _SPAN) | (kind == _GAP)
    return long


def touching(events: Block, interval: Interval) -> Mask:
    """Mask of the events that lie in the interval, at least in part."""
    start, end = interval
    ts: Any = events["ts"]
    inside: Mask = (ts >= start) & (ts < end)
    across: Mask = has_duration(events) & (ts < start) & (ends(events) > start)
    return inside | across


def touching_any(events: Block, intervals: list[Interval]) -> Mask:
    """Mask of the events that lie in one of the sorted, disjoint intervals, at least in part."""
    if not intervals:
        return np.zeros(len(events), np.bool_)
    starts, stops = np.array(intervals, np.int64).T
    at = np.searchsorted(stops, events["ts"], side="right")
    start = starts[np.minimum(at, len(stops) - 1)]
    reached: Mask = (events["ts"] >= start) | (has_duration(events) & (ends(events) > start))
    return reached & (at < len(stops))


def clip(events: Block, intervals: list[Interval]) -> Block:
    """Cuts events at the borders of sorted, disjoint intervals, and returns the parts within.

    Cut spans are flagged. Self time is distributed over the parts in order, up to the length of each. So the parts never have more
    self time than the span, nor more than their length. The number of events of a gap stays with its first part; other parts have
    0.
    """
    if not intervals or not len(events):
        return events[:0]
    starts, stops = np.array(intervals, np.int64).T
    ts, last, long = events["ts"], ends(events), has_duration(events)
    at = np.searchsorted(stops, ts, side="right")
    before_end = at < len(stops)
    start, stop = starts[np.minimum(at, len(stops) - 1)], stops[np.minimum(at, len(stops) - 1)]
    whole = before_end & (ts >= start) & (~long | (last <= stop))
    # Few events cross a border, so only these are processed interval by interval.
    crossing = before_end & long & ~whole & (last > start)
    if not crossing.any():
        inside: Block = events[whole]
        return inside
    return join_blocks([events[whole], *_cut(events[crossing], intervals)])


def _cut(events: Block, intervals: list[Interval]) -> Iterator[Block]:
    """The parts of spans and gaps that cross borders."""
    rest, counts = events["self_dur"].copy(), events["id"].copy()
    spans_of_all = events["kind"] == int(Kind.SPAN)
    first, last = int(events["ts"].min()), int(ends(events).max())
    for start, end in intervals:
        if end <= first or start >= last:
            continue
        mask = touching(events, (start, end))
        part = events[mask]
        ts = np.maximum(part["ts"], start)
        dur = np.minimum(ends(part), end) - ts
        own = np.minimum(rest[mask], dur)
        rest[mask] -= own
        cut = dur < part["dur"]
        part["ts"], part["dur"] = ts, dur
        spans = part["kind"] == int(Kind.SPAN)
        part["self_dur"][spans] = own[spans]
        part["id"] = counts[mask]
        counts[mask & ~spans_of_all] = 0
        part["flags"][cut] |= int(Flag.CLIPPED)
        yield part


def without(whole: Interval, gaps: list[Interval]) -> list[Interval]:
    """An interval without sorted gaps."""
    start, end = whole
    rest: list[Interval] = []
    for gap_start, gap_end in gaps:
        if gap_start > start:
            rest.append((start, min(gap_start, end)))
        start = max(start, gap_end)
        if start >= end:
            return rest
    rest.append((start, end))
    return rest

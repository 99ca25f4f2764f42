"""Cutting events at the borders of what was recorded: pure functions over blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.runtime.events import Block, Flag, Kind, join_blocks

Interval = tuple[int, int]
"""`[start, end)` in ns."""

FOREVER = np.iinfo(np.int64).max
Mask = NDArray[np.bool_]


def ends(events: Block) -> NDArray[np.int64]:
    """When each event ended, in ns; what has no duration ends when it begins."""
    end: Any = events["ts"] + np.where(has_duration(events), events["dur"], 0)
    return end  # type: ignore[no-any-return]


def has_duration(events: Block) -> Mask:
    """Whether each event is a span or a gap."""
    kind: Any = events["kind"]
    long: Mask = (kind == Kind.SPAN) | (kind == Kind.GAP)
    return long


def touching(events: Block, interval: Interval) -> Mask:
    """Whether each event lies in the interval, at least in part; what has no duration lies where it begins."""
    start, end = interval
    ts: Any = events["ts"]
    inside: Mask = (ts >= start) & (ts < end)
    across: Mask = has_duration(events) & (ts < start) & (ends(events) > start)
    return inside | across


def clip(events: Block, intervals: list[Interval]) -> Block:
    """The parts of events that lie in the intervals, which are in order and apart.

    A span that crosses a border is cut there and flagged; its self time goes to its parts in order, as much as
    fits each. So the parts of a span never hold more self time than it had, nor more than they last.
    """
    left = events["self_dur"].copy()
    parts: list[Block] = []
    for start, end in intervals:
        mask = touching(events, (start, end))
        if not mask.any():
            continue
        part = events[mask]
        long = has_duration(part)
        ts = np.maximum(part["ts"], start)
        dur = np.minimum(ends(part), end) - ts
        cut = long & (dur < part["dur"])
        if cut.any():
            own = np.minimum(left[mask], dur)
            left[np.flatnonzero(mask)[cut]] -= own[cut]
            part["ts"][cut] = ts[cut]
            part["dur"][cut] = dur[cut]
            spans = cut & (part["kind"] == Kind.SPAN)
            part["self_dur"][spans] = own[spans]
            part["flags"][cut] |= int(Flag.CLIPPED)
        parts.append(part)
    return parts[0] if len(parts) == 1 else join_blocks(parts)


def without(whole: Interval, gaps: list[Interval]) -> list[Interval]:
    """What is left of an interval without the gaps, which are in order."""
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

"""The nearest ancestor of each event that is sent as well."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.runtime.events.record import Block

Indices = NDArray[np.int64]
Mask = NDArray[np.bool_]

NONE = -1
"""Has no parent."""
UNKNOWN = -2
"""Its parent is not among these events."""

DEEPEST = 1024
"""Generations that are looked at; recorded stacks are less deep."""


def parents(events: Block, spans: Mask) -> Indices:
    """Index of each event's parent among the spans, `NONE` or `UNKNOWN`.

    A span that was cut into parts has one id in all of them: the part counts that began last before the event, else
    the first after it.
    """
    found: Indices = np.full(len(events), NONE, np.int64)
    rows, asking = np.flatnonzero(spans & (events["id"] != 0)), np.flatnonzero(events["parent"] != 0)
    if not len(asking):
        return found
    ids = np.concatenate([events["id"][rows], events["parent"][asking]])
    times = np.concatenate([events["ts"][rows], events["ts"][asking]])
    asks = np.arange(len(ids)) >= len(rows)
    order = np.lexsort((asks, times, ids))
    sorted_ids, is_row = ids[order], ~asks[order]
    places = np.arange(len(order))
    before = np.maximum.accumulate(np.where(is_row, places, NONE))
    after = np.minimum.accumulate(np.where(is_row, places, len(order))[::-1])[::-1]
    after = np.where(after == len(order), NONE, after)
    fits_before = (before >= 0) & (sorted_ids[before] == sorted_ids)
    fits_after = (after >= 0) & (sorted_ids[after] == sorted_ids)
    place = np.where(fits_before, before, np.where(fits_after, after, NONE))
    questions = ~is_row
    asked = order[questions] - len(rows)
    place = place[questions]
    own = asking[asked]
    answer: Indices = np.full(len(own), UNKNOWN, np.int64)
    answer[place >= 0] = rows[order[place[place >= 0]]]
    found[own] = np.where(answer == own, NONE, answer)
    return found


def nearest(parent: Indices, sent: Mask, asking: Mask) -> Indices:
    """Index of the nearest ancestor that is sent, for events that ask; `NONE` or `UNKNOWN` where the way up ends.

    Whatever the parents are, the answer has no circles: who would be its own ancestor has none.
    """
    up = parent.copy()
    up[~asking] = NONE
    on = np.flatnonzero(up >= 0)
    for _ in range(DEEPEST):
        on = on[~sent[up[on]]]
        if not len(on):
            break
        up[on] = parent[up[on]]
        on = on[up[on] >= 0]
    up[on] = NONE
    up[_circling(np.where(sent, up, NONE))] = NONE
    return up


def _circling(up: Indices) -> Mask:
    """Those from which the way up never ends."""
    far = up
    for _ in range(len(up).bit_length()):
        on = far >= 0
        if not on.any():
            break
        further: Any = far.copy()
        further[on] = far[far[on]]
        far = further
    return far >= 0

"""Events as columns, for tables of other libraries."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.record import EventBatch

_AS_THEY_ARE = ("step", "ts", "dur", "kind")


def columns_of_events(batches: Iterable[EventBatch]) -> dict[str, Any]:
    """Arrays of window, source, step, ts, dur (ns), kind, category, name and track, with texts instead of ids."""
    columns: dict[str, list[Any]] = {
        name: [] for name in ("window", "source", *_AS_THEY_ARE, "category", "name", "track")
    }
    for batch in batches:
        events = batch.events
        columns["window"].append(np.full(len(events), batch.window, np.int64))
        columns["source"].append(np.full(len(events), batch.source, object))
        for name in _AS_THEY_ARE:
            columns[name].append(events[name])
        columns["category"].append(np.asarray(strings.texts(events["category"]), object))
        columns["name"].append(np.asarray(strings.texts(events["name"]), object))
        rows = [tracks.get(int(each)) for each in events["track"]]
        columns["track"].append(np.asarray(["" if row is None else row.name for row in rows], object))
    return {name: np.concatenate(parts) if parts else [] for name, parts in columns.items()}

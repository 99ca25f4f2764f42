"""Running statistics: what `summary()` shows, kept while the events stream by."""

from __future__ import annotations

import numpy as np

from stepscope.runtime import _core
from stepscope.runtime.events.record import Block


class Aggregates(_core.Aggregates):
    """Count, total, self, minimum, maximum and quantiles of spans; the like of counters; counts of instants.

    One row per kind, name and category. Counts and sums are exact; quantiles are nearest-rank and off by less than
    1/128 of their value. Bounded: 65,536 rows and 256 MiB of quantile buckets, what does not fit is counted
    (`counts()`). Every method may be called from any thread, and works with the GIL released; a reader sees whole
    updates only.
    """

    def update(self, events: Block, /) -> None:
        """Adds the spans, instants and counters among `events`, in any order; other kinds are passed over."""
        super().update(np.ascontiguousarray(events))

    def copy(self) -> Aggregates:
        """The statistics as they are now, which later updates do not change."""
        copied = Aggregates()
        copied.merge(self)
        return copied

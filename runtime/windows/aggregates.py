"""Running statistics of spans, counters and instants, for `summary()`."""

from __future__ import annotations

import numpy as np

from stepscope.runtime import _core
from stepscope.runtime.events.record import Block


class Aggregates(_core.Aggregates):
    """Count, total, self, minimum, maximum, quantiles and standard deviation of spans; similar values of counters; counts of
    instants.

    One row per kind, name and category. Counts and sums are exact; quantiles are nearest-rank and off by less than
    1/128 of their value; the standard deviation divides by the count. Bounded: 65,536 rows and 256 MiB of quantile
    buckets; `counts()` has the number of events that did not fit. Any thread may call any method, which releases the
    GIL. A reader sees whole updates only.
    """

    def update(self, events: Block, /) -> None:
        """Adds the spans, instants and counters among `events`, in any order; ignores other kinds."""
        super().update(np.ascontiguousarray(events))

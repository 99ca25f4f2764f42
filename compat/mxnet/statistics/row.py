"""A row of the tables of `dumps`."""

from __future__ import annotations

import math
from enum import StrEnum

from stepscope.compat.mxnet.statistics.moments import Values
from stepscope.runtime.settings.documented import Documented


class Section(StrEnum):
    """What a row's numbers are, as the JSON of `dumps` calls it."""

    TIME = "Time"
    MEMORY = "Memory"
    COUNTER = "Counter"
    MARKER = "Marker"


UNITS = {Section.TIME: "ms", Section.MEMORY: "kB", Section.COUNTER: "", Section.MARKER: ""}
"""Units of the numbers of a section."""
SCALES = {Section.TIME: 1e6, Section.MEMORY: 1e3, Section.COUNTER: 1.0, Section.MARKER: 1.0}
"""Divisors that convert recorded numbers to these units."""


class Row(Documented, frozen=True, kw_only=True):
    """One name of a category: durations in ms, memory in kB (1,000 bytes), values of counters as they are."""

    section: Section
    category: str
    name: str
    count: int
    """Passes, values or instants."""
    total: float = 0.0
    min: float = 0.0
    max: float = 0.0
    avg: float = 0.0
    std: float = math.nan
    p50: float = math.nan
    p95: float = math.nan
    p99: float = math.nan
    last: float = math.nan
    """The latest value of a counter."""
    weighted: float = math.nan
    """Mean of a counter over the time from its first value to its last."""
    rate: float = math.nan
    """Passes of a frame per second."""

    @classmethod
    def of(cls, section: Section, category: str, name: str, values: Values, **others: float) -> Row:
        """A row of durations in ns, bytes, or values of a counter. `others` are `last` and `weighted`, on the same scale, and `rate`."""
        scale = SCALES[section]
        p50, p95, p99 = values.quantiles(0.50, 0.95, 0.99)
        rate = others.pop("rate", math.nan)
        numbers = {
            "total": values.total,
            "min": values.min,
            "max": values.max,
            "avg": values.mean,
            "std": values.std,
            "p50": p50,
            "p95": p95,
            "p99": p99,
            **others,
        }
        scaled = {field: number / scale for field, number in numbers.items()}
        return cls(section=section, category=category, name=name, count=values.count, rate=rate, **scaled)

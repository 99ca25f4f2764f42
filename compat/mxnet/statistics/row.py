"""A row of the tables of `dumps`."""

from __future__ import annotations

import math
from enum import StrEnum

from stepscope.compat.mxnet.statistics.moments import Values
from stepscope.compat.mxnet.statistics.series import CounterSeries, Shares, SpanSeries
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
    def of_span(cls, category: str, name: str, series: SpanSeries) -> Row:
        """A row of durations."""
        return cls._of(Section.TIME, category, name, series.durations, rate=series.rate)

    @classmethod
    def of_counter(cls, section: Section, category: str, name: str, series: CounterSeries) -> Row:
        """A row of a counter's values, or of bytes."""
        scale = SCALES[section]
        return cls._of(
            section, category, name, series.values, last=series.last / scale, weighted=series.weighted / scale
        )

    @classmethod
    def of_marker(cls, category: str, name: str, count: int) -> Row:
        """A row of instants."""
        return cls(section=Section.MARKER, category=category, name=name, count=count)

    @classmethod
    def _of(
        cls,
        section: Section,
        category: str,
        name: str,
        values: Values,
        *,
        last: float = math.nan,
        weighted: float = math.nan,
        rate: float = math.nan,
    ) -> Row:
        scale = SCALES[section]
        shares = Shares.of(values)
        return cls(
            section=section,
            category=category,
            name=name,
            count=values.count,
            total=values.total / scale,
            min=values.min / scale,
            max=values.max / scale,
            avg=values.mean / scale,
            std=values.std / scale,
            p50=shares.p50 / scale,
            p95=shares.p95 / scale,
            p99=shares.p99 / scale,
            last=last,
            weighted=weighted,
            rate=rate,
        )

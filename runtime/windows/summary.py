"""The aggregate table of a window or run: a finished result, rendered as text, Markdown or JSON."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import attrgetter
from typing import Any, TextIO, TypeVar

import msgspec

from stepscope.runtime import _core
from stepscope.runtime.analysed import as_html
from stepscope.runtime.display.text_table import (
    Column,
    fitting_table,
    human_count,
    human_number,
    human_time,
    markdown_code,
    markdown_table,
    printable,
    shorten,
)
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import OF_SIGNALS
from stepscope.runtime.files.encoding import json_bytes
from stepscope.runtime.settings.arguments import got
from stepscope.runtime.settings.documented import Documented
from stepscope.runtime.windows.step_parts import UNCOVERED
from stepscope.runtime.windows.step_statistics import SHOWN_FROM_NS, Part, StepStatistics
from stepscope.runtime.windows.window_tables import WindowTable

NAME_WIDTH = 40
"""Columns of a name in a terminal's table, where the terminal has no room for more. Longer names are shortened in the middle."""
NUMBERS_WIDTH = 100
"""Columns that the rest of a row takes."""
CATEGORY_WIDTH = 20


class SummaryRow(msgspec.Struct, frozen=True, gc=False):
    """The spans of one name and category. Quantiles are nearest-rank, off by less than 1/128 of their value."""

    name: str
    category: str
    count: int
    total_ns: int
    """Sum of the durations; time in nested spans of the same name counts twice."""
    self_ns: int
    """Time without child spans. Over all rows of a thread it adds up to the covered time. 0 for steps, such as
    `ProfilerStep#4`, whose time is that of the spans within."""
    min_ns: int
    max_ns: int
    mean_ns: float
    p50_ns: float
    p95_ns: float
    p99_ns: float


class CounterRow(msgspec.Struct, frozen=True, gc=False):
    """The finite values of one counter."""

    name: str
    category: str
    count: int
    min: float
    max: float
    last: float
    """The value with the latest timestamp."""
    mean: float
    sum: float


class InstantRow(msgspec.Struct, frozen=True, gc=False):
    """How often an instant event occurred."""

    name: str
    category: str
    count: int


_Named = TypeVar("_Named", CounterRow, InstantRow)

SORT_KEYS = ("self", "total", "count", "mean", "min", "max", "p50", "p95", "p99", "name", "category")
"""Values of `sort_by`. Numbers sort with the largest first, texts from A to Z."""
FORMATS = ("table", "markdown", "json")
"""Values of `format`."""


def _is_around_operators(row: SummaryRow) -> bool:
    return row.self_ns > 0 and row.category == "user_annotation"


def _head(name: str, *numbers: str) -> tuple[Column, ...]:
    return (Column(name, right=False), Column("Category", right=False), *(Column(number) for number in numbers))


_SPAN_NUMBERS = ("Total", "Mean", "Min", "P50", "P95", "P99", "Max")
_OPTIONAL = ("P99", "Min", "P95", "P50", "Category", "Mean")
"""Columns that a narrow terminal does not have, the first one first."""
_ELSEWHERE_HEAD = _head("Other processes", "Count", "Self", *_SPAN_NUMBERS)
_PART_HEAD = (Column("Part of a step", right=False), Column("A step"), Column("Steps %"))
MOST_ELSEWHERE = 5
"""Rows of other processes that are shown."""
_COUNTER_HEAD = _head("Counter", "Values", "Last", "Mean", "Min", "Max", "Sum")
_INSTANT_HEAD = _head("Instant", "Count")
_REMARKS = {
    "open": "windows that are still open, with what has come of them so far: {}",
    "apart": "operators whose time is also in Self of the spans around them, as they were recorded apart (kineto mode): {}",
    "cut": "spans cut at a border of what was recorded, or not ended: {}",
    "negative": "spans with a negative time, taken as 0: {}",
    "not_finite": "counter values left out because they are no finite numbers: {}",
    "other": "events under `(other names)`, beyond the number of names kept apart: {}",
    "blurred": "spans not exactly placed in the quantiles, whose memory was used up: {}",
}


class Summary(Documented, frozen=True):
    """Statistics of spans, counters, instants and steps. A finished result: it does not change while recording goes on."""

    rows: tuple[SummaryRow, ...] = ()
    """Spans, the largest self time first."""
    counters: tuple[CounterRow, ...] = ()
    """Counters, by name. Tables do not show the many counters and instants of `Options.signals`."""
    instants: tuple[InstantRow, ...] = ()
    """Instant events, by name."""
    counts: dict[str, int] = {}
    """Inexact values by kind, see `Aggregates.counts()`; `open`: windows that were not closed yet; `apart`: operators whose
    time is also in the self time of the spans around them."""
    steps: StepStatistics | None = None
    """Statistics of the steps; `None` if there are none."""
    parts: tuple[Part, ...] = ()
    """Time of the judged steps by part, on the thread that steps. The parts add up to it."""
    elsewhere: tuple[SummaryRow, ...] = ()
    """Spans of other processes, such as a DataLoader's workers, the largest self time first. They are not in `rows`."""
    startup_ns: int = 0
    """Recorded time before the first step."""
    shutdown_ns: int = 0
    """Recorded time after the last step."""
    steps_ns: int = 0
    """Time of all steps."""
    recorded_ns: int = 0
    """Time of the windows."""

    @classmethod
    def of_table(cls, table: WindowTable) -> Summary:
        """The summary of a window's table, with steps and other processes."""
        totals = table.steps
        statistics, parts = totals.of_judged()
        others = cls.of(table.elsewhere)
        own = cls.of(table.spans)
        return msgspec.structs.replace(
            own,
            counters=_by_name((*own.counters, *others.counters)),
            instants=_by_name((*own.instants, *others.instants)),
            counts={name: own.counts.get(name, 0) + others.counts.get(name, 0) for name in own.counts | others.counts}
            | ({"open": table.open} if table.open else {})
            | ({"apart": table.apart} if table.apart and any(map(_is_around_operators, own.rows)) else {}),
            steps=statistics,
            parts=parts,
            elsewhere=others.rows,
            startup_ns=totals.startup_ns if totals.count else 0,
            shutdown_ns=totals.shutdown_ns if totals.count else 0,
            steps_ns=totals.ns,
            recorded_ns=table.ns,
        )

    @classmethod
    def of(cls, aggregates: _core.Aggregates) -> Summary:
        text = strings.text
        rows = [
            SummaryRow(text(name), text(category), count, total, self_, low, high, total / count, p50, p95, p99)
            for name, category, count, total, self_, low, high, p50, p95, p99, _ in aggregates.rows()
        ]
        counters = [
            CounterRow(text(name), text(category), count, low, high, last, mean, total)
            for name, category, count, low, high, last, mean, total in aggregates.counter_rows()
        ]
        instants = [
            InstantRow(text(name), text(category), count) for name, category, count in aggregates.instant_rows()
        ]
        return cls(
            tuple(_sorted(rows, "self")),
            _by_name(counters),
            _by_name(instants),
            {name: count for name, count in aggregates.counts().items() if count},
        )

    def render(self, sort_by: str = "self", top: int | None = 20, format: str = "table") -> str:
        """The summary as text.

        Args:
            sort_by: one of `SORT_KEYS`.
            top: how many rows of spans to show; `None` shows all.
            format: one of `FORMATS`.

        Raises:
            ValueError: for any other value of `sort_by` or `format`, or a `top` below 1.
            TypeError: if `top` is not an integer.
        """
        if format not in FORMATS:
            raise ValueError(f"unknown format {format!r}: it must be one of {', '.join(FORMATS)}")
        return {"table": self.table, "markdown": self.markdown, "json": self.json}[format](sort_by, top)

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        """For notebooks."""
        return as_html(self)

    def table(self, sort_by: str = "self", top: int | None = 20) -> str:
        """Aligned columns for a terminal. Names are as long as a wide one has room for, else shortened; a narrow one has fewer columns.
        Raises as `render`."""
        name_width = max(NAME_WIDTH, shutil.get_terminal_size().columns - NUMBERS_WIDTH)
        fit = partial(fitting_table, width=_widest(), optional=_OPTIONAL)
        return self._text(sort_by, top, fit, (_shortener(name_width), _shortener(CATEGORY_WIDTH)), "{}")

    def markdown(self, sort_by: str = "self", top: int | None = 20) -> str:
        """Tables of GitHub flavoured Markdown with full names. Raises as `render`."""
        return self._text(sort_by, top, markdown_table, (markdown_code, markdown_code), "- {}")

    def json(self, sort_by: str = "self", top: int | None = None) -> str:
        """An object with the fields of `Summary`; times in ns, full precision. Raises as `render`."""
        return json_bytes(self.cut(sort_by, top)).decode()

    def cut(self, sort_by: str = "self", top: int | None = 20) -> Summary:
        """A summary with the first rows of spans only. Raises as `render`."""
        return msgspec.structs.replace(self, rows=tuple(self._top(sort_by, top)))

    def _head(self) -> Iterator[str]:
        """Lines on all steps, and on the time before and after them."""
        steps = self.steps
        if steps is None:
            if self.recorded_ns:
                yield f"{human_time(self.recorded_ns)} recorded, without steps"
            return
        if steps.steps == 1:
            yield f"1 step: {human_time(steps.mean)}"
        else:
            left_out = steps.steps - steps.steady
            yield (
                f"{human_count(steps.steps, 'step')}: mean {human_time(steps.mean)}, p50 {human_time(steps.p50)}, "
                f"p95 {human_time(steps.p95)}, {human_number(steps.rate, 3)} steps/s"
                + (f", without the first {left_out}" if left_out else "")
            )
            why = f": {steps.slowest_why}" if steps.slowest_why else ""
            yield f"slowest: step {steps.slowest}, {human_time(steps.slowest_ns)}{why}"
        margins = [("startup", self.startup_ns), ("shutdown", self.shutdown_ns)]
        shown = [f"{name} {human_time(ns)}" for name, ns in margins if ns >= SHOWN_FROM_NS]
        if shown:
            yield f"beside steps: {', '.join(shown)}"

    def _part_rows(self) -> Iterator[tuple[str, str, str]]:
        steps = self.steps.steady if self.steps is not None else 1
        for part in self.parts:
            name = part.name.replace(UNCOVERED, f"{UNCOVERED} by any span")
            yield name, human_time(part.total_ns / steps), f"{part.share:.1%}"
        yield "a step", human_time(sum(part.total_ns for part in self.parts) / steps), "100.0%"

    def _top(self, sort_by: str, top: int | None) -> list[SummaryRow]:
        if sort_by not in SORT_KEYS:
            raise ValueError(f"cannot sort by {sort_by!r}: it must be one of {', '.join(SORT_KEYS)}")
        if top is not None and (not isinstance(top, int) or isinstance(top, bool)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"top must be an integer or None, {got(top)}")
        if top is not None and top < 1:
            raise ValueError(f"top must be 1 or more, got {top}")
        return _sorted(self.rows, sort_by)[:top]

    def _text(
        self,
        sort_by: str,
        top: int | None,
        table: Callable[[Any, Any], str],
        labels: tuple[Callable[[str], str], Callable[[str], str]],
        remark: str,
    ) -> str:
        shown = self._top(sort_by, top)
        # Rows also have spans from before the first step and after the last one.
        long_margins = max(self.startup_ns, self.shutdown_ns) >= SHOWN_FROM_NS
        of_steps = self.steps_ns > 0 and not long_margins
        whole = self.steps_ns if of_steps else self.recorded_ns

        def label(row: SummaryRow | CounterRow | InstantRow) -> tuple[str, str, str]:
            return labels[0](row.name or "(unnamed)"), labels[1](row.category), f"{row.count:,}"

        def times(row: SummaryRow) -> list[str]:
            rest = (row.total_ns, row.mean_ns, row.min_ns, row.p50_ns, row.p95_ns, row.p99_ns, row.max_ns)
            return [*map(human_time, rest)]

        def own_time(row: SummaryRow) -> list[str]:
            return [human_time(row.self_ns), *([f"{row.self_ns / whole:.1%}"] if whole else [])]

        lines = list(self._head())
        parts: list[str] = ["\n".join(remark.format(line) for line in lines)] if lines else []
        if self.parts:
            parts.append(table(_PART_HEAD, list(self._part_rows())))
        if shown:
            share = ["Steps %" if of_steps else "Time %"] if whole else []
            head = _head("Name", "Count", "Self", *share, *_SPAN_NUMBERS)
            parts.append(table(head, [(*label(row), *own_time(row), *times(row)) for row in shown]))
        hidden = len(self.rows) - len(shown)
        remarks = [f"{hidden:,} of {len(self.rows):,} rows are not shown"] if hidden else []
        spans, own = sum(row.count for row in self.rows), sum(row.self_ns for row in self.rows)
        remarks.append(
            f"{human_count(spans, 'span')}, {human_time(own)} self time" if spans else "no spans were recorded"
        )
        remarks += [_REMARKS[name].format(f"{n:,}") for name, n in self.counts.items() if n and name in _REMARKS]
        parts.append("\n".join(remark.format(line) for line in remarks))
        if self.elsewhere:
            others = self.elsewhere[:MOST_ELSEWHERE]
            parts.append(
                table(_ELSEWHERE_HEAD, [(*label(row), human_time(row.self_ns), *times(row)) for row in others])
            )
            if len(self.elsewhere) > len(others):
                hidden = len(self.elsewhere) - len(others)
                parts.append(remark.format(f"{hidden:,} of {len(self.elsewhere):,} rows are not shown"))
        counters = [row for row in self.counters if row.category not in OF_SIGNALS]
        instants = [row for row in self.instants if row.category not in OF_SIGNALS]
        if counters:
            values = ((row, (row.last, row.mean, row.min, row.max, row.sum)) for row in counters)
            parts.append(table(_COUNTER_HEAD, [(*label(row), *map(human_number, v)) for row, v in values]))
        if instants:
            parts.append(table(_INSTANT_HEAD, [label(row) for row in instants]))
        return "\n\n".join(parts) + "\n"


def _widest() -> int:
    """Columns of the terminal, if there is one."""
    streams: tuple[TextIO | None, TextIO | None] = sys.stdout, sys.stderr
    with contextlib.suppress(ValueError):  # the program has closed one
        if any(stream is not None and stream.isatty() for stream in streams):
            return shutil.get_terminal_size().columns
    return sys.maxsize


def _by_name(rows: Iterable[_Named]) -> tuple[_Named, ...]:
    return tuple(sorted(rows, key=lambda row: (row.name, row.category)))


def _sorted(rows: list[SummaryRow] | tuple[SummaryRow, ...], sort_by: str) -> list[SummaryRow]:
    by_name = sorted(rows, key=lambda row: (row.name, row.category))
    field = sort_by if sort_by in ("count", "name", "category") else f"{sort_by}_ns"
    return sorted(by_name, key=attrgetter(field), reverse=sort_by not in ("name", "category"))


def _shortener(limit: int) -> Callable[[str], str]:
    return lambda text: shorten(printable(text), limit)

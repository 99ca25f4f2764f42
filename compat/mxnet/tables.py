"""The rows of `dumps`, and the text that it returns.

`table` and `json` have the layout of MXNet 1.9.1, with counters in a section of their own, for their values are no times.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import groupby

from stepscope.runtime.display.text_table import Column, markdown_code, markdown_table, printable
from stepscope.runtime.settings.documented import Documented


class Section(StrEnum):
    """The unit of a row's numbers, as the JSON of `dumps` calls it."""

    TIME = "Time"
    MEMORY = "Memory"
    COUNTER = "Counter"
    MARKER = "Marker"


UNITS = {Section.TIME: "ms", Section.MEMORY: "kB", Section.COUNTER: "", Section.MARKER: ""}
"""Units of the numbers of a section."""
SCALES = {Section.TIME: 1e6, Section.MEMORY: 1e3, Section.COUNTER: 1.0, Section.MARKER: 1.0}
"""Divisors that convert recorded numbers to these units."""
_SCALED = ("total", "min", "max", "avg", "std", "p50", "p95", "p99", "last", "weighted")


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
    def of(cls, section: Section, names: tuple[str, str], count: int, *numbers: float, rate: float = math.nan) -> Row:
        """A row of category and name, whose `numbers`, from `total` on, are durations in ns, bytes, or values of a counter."""
        scaled = dict(zip(_SCALED, (number / SCALES[section] for number in numbers), strict=False))
        return cls(section=section, category=names[0], name=names[1], count=count, rate=rate, **scaled)


FORMATS = ("table", "json", "csv", "markdown")
SORT_KEYS = ("total", "avg", "min", "max", "count")

_TITLES = {
    Section.TIME: ("Time (ms)", "Min Time (ms)", "Max Time (ms)", "Avg Time (ms)"),
    Section.MEMORY: ("Min Use  (kB)", "Max Use  (kB)", "Avg Use  (kB)"),
    Section.COUNTER: ("Total", "Min Value", "Max Value", "Avg Value"),
    Section.MARKER: (),
}
_NUMBERS = ("total", "min", "max", "avg")
_MORE = {"std": "Std", "p50": "P50", "p95": "P95", "p99": "P99", "last": "Last", "weighted": "Time-weighted avg",
         "rate": "Per second"}  # fmt: skip
"""Fields with numbers that every section but markers has, and those of CSV and Markdown, with their titles."""


def render(rows: Iterable[Row], format: str, sort_by: str, ascending: bool) -> str:
    """The rows as text in one of `FORMATS`, those of a category sorted by one of `SORT_KEYS`, categories by their names."""
    groups = [
        (category, section, sorted(group, key=lambda row: getattr(row, sort_by), reverse=not ascending))
        for (category, section), group in groupby(rows, key=lambda row: (row.category, row.section))
    ]
    return {"table": _table, "json": _json, "csv": _csv, "markdown": _markdown}[format](groups)


Groups = Sequence[tuple[str, Section, list[Row]]]


def _table(groups: Groups) -> str:
    lines = ["", "Profile Statistics:", "\tNote the difference in units for different entries."]
    for category, section, rows in groups:
        titles = _TITLES[section]
        lines += [printable(category), "================="]
        for head in (("Name", "Total Count", *titles), ("----", "-----------", *("-" * len(one) for one in titles))):
            lines.append(f"{head[0]:<25} {head[1]:>15}" + "".join(f" {title:>16}" for title in head[2:]))
        for row in rows:
            numbers = [getattr(row, name) for name in _numbers(section)]
            lines.append(f"{printable(row.name):<25} {row.count:>15}" + "".join(f" {n:>16.4f}" for n in numbers))
        lines.append("")
    return "\n".join(lines) + "\n"


def _numbers(section: Section) -> tuple[str, ...]:
    if section is Section.MARKER:
        return ()
    return _NUMBERS[1:] if section is Section.MEMORY else _NUMBERS


def _json(groups: Groups) -> str:
    made: dict[str, dict[str, dict[str, dict[str, float]]]] = {section.value: {} for section in Section}
    for category, section, rows in groups:
        made[section][category] = {
            row.name: {
                "Count": row.count,
                **{name.capitalize(): _plain(getattr(row, name)) for name in _numbers(section)},
            }
            for row in rows
        }
    unit = {section.value: UNITS[section] for section in Section if UNITS[section]}
    return json.dumps({**made, "Unit": unit}, indent=4)


def _plain(value: float) -> float:
    """Ten digits: more than a clock has, and no rounding errors such as 0.30000000000000004."""
    return float(f"{value:.10g}")


_COLUMNS = ("Section", "Unit", "Category", "Name", "Count", *map(str.capitalize, _NUMBERS), *_MORE.values())


def _csv(groups: Groups) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for category, section, rows in groups:
        for row in rows:
            numbers = [*_numbers_of(row)]
            writer.writerow([section.value, UNITS[section], category, row.name, row.count, *numbers])
    return text.getvalue()


def _numbers_of(row: Row) -> Iterable[str]:
    """Numbers of all columns; empty where there is none."""
    for name in (*_NUMBERS, *_MORE):
        yield _text(getattr(row, name)) if name in _MORE or name in _numbers(row.section) else ""


def _text(value: float) -> str:
    return "" if math.isnan(value) else repr(_plain(value))


def _markdown(groups: Groups) -> str:
    head = [Column(title, right=at >= 4) for at, title in enumerate(_COLUMNS)]
    rows = [
        [
            section.value,
            UNITS[section],
            markdown_code(category),
            markdown_code(row.name),
            str(row.count),
            *_numbers_of(row),
        ]
        for category, section, group in groups
        for row in group
    ]
    return markdown_table(head, rows) + "\n"

"""HTML of a profiler, its table and its report, for notebooks."""

from __future__ import annotations

from stepscope.analysis.page.render import tables_html
from stepscope.runtime.display.text_table import Column, human_time
from stepscope.runtime.profiler import Profiler
from stepscope.runtime.report.profiler_statistics import ProfilerStatistics
from stepscope.runtime.windows.summary import Summary

MOST_ROWS = 10
"""Of the table below a profiler."""
_HEAD = (
    Column("Name", right=False),
    Column("Category", right=False),
    *(Column(name) for name in ("Count", "Self", "Total", "Mean", "Median", "p95")),
)


def html_of(shown: object) -> str:
    """A part of a page."""
    if isinstance(shown, Profiler):
        notes = [*shown.diagnostics(), "profiler.explain() says what is slow, profiler.report() what was dropped."]
        facts = [*_facts(shown.statistics()).items(), ("directory", shown.output.path)]
        return tables_html(f"Profiler {shown.name}", facts, _tables(shown.aggregates(), MOST_ROWS), notes)
    if isinstance(shown, Summary):
        return tables_html(tables=_tables(shown), notes=() if shown.rows else ["No spans were recorded."])
    title, *lines = str(shown).splitlines()
    return tables_html(title, [(line[2:12].strip(), line[12:]) for line in lines])


def _facts(now: ProfilerStatistics) -> dict[str, object]:
    facts: dict[str, object] = {"state": now.state, "steps": f"{now.steps:,}", "windows": f"{now.windows:,}"}
    if now.pipeline is None:
        return facts
    windows = now.pipeline.windows
    dropped = sum(sum(reasons.values()) for reasons in windows.dropped.values())
    return facts | {"events": f"{sum(windows.accepted.values()):,}", "dropped": f"{dropped:,}"}


def _tables(table: Summary, most: int | None = None) -> list[tuple[str, tuple[Column, ...], list[tuple[str, ...]]]]:
    rows = [
        (row.name or "(no name)", row.category, f"{row.count:,}", human_time(row.self_ns))
        + tuple(human_time(ns) for ns in (row.total_ns, row.mean_ns, row.p50_ns, row.p95_ns))
        for row in table.rows[:most]
    ]
    return [("Spans of closed windows", _HEAD, rows)] if rows else []

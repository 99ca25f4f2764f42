"""A page of the window's tables, to be read in a browser."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from stepscope.analysis.allocations import human_bytes
from stepscope.analysis.flops import human_flops, utilization_of
from stepscope.compat.mindspore.output_files import write_text
from stepscope.compat.mindspore.products.base import Product
from stepscope.compat.mindspore.products.flops import Flops
from stepscope.compat.mindspore.products.memory import MemoryRecord, MemoryUsage
from stepscope.compat.mindspore.products.operators import OperatorTable, by_type
from stepscope.compat.mindspore.products.step_phases import StepPhases
from stepscope.compat.mindspore.products.step_times import StepTimes
from stepscope.runtime.export.run import Run
from stepscope.runtime.windows.window import Window

ROWS = 200
"""Rows of a table; the files have all."""

_TIMES = (
    ("Whole (ms)", "whole"),
    ("Computing", "computing"),
    ("Communication", "communication"),
    ("Overlapped", "overlapped"),
    ("Free", "free"),
)
"""Columns of the table of steps, and fields of `StepTime`."""

_STYLE = """body{font:14px sans-serif;margin:2em;max-width:70em}table{border-collapse:collapse;margin:1em 0}
td,th{padding:.2em .8em;border-bottom:1px solid #ddd;text-align:right}td:first-child,th:first-child{text-align:left}"""


class ReportPage(Product):
    """Writes `report.html`, which needs no other file, from what other products have found, and the data that are missing."""

    name = "report"

    def __init__(
        self,
        directory: Path,
        operators: OperatorTable,
        steps: StepTimes,
        phases: StepPhases,
        memory: MemoryRecord,
        usage: MemoryUsage,
        flops: Flops,
        limits: Sequence[str],
    ) -> None:
        self._path = directory / "report.html"
        self._operators, self._steps, self._memory, self._limits = operators, steps, memory, limits
        self._phases, self._flops, self._usage = phases, flops, usage
        self._run: Run | None = None

    async def open(self, run: Run) -> None:
        self._run = run

    async def finish(self, window: Window) -> tuple[Path, ...]:
        rows = self._operators.rows()
        whole = sum(row.total_ns for row in rows) or 1
        numbers = f"{window.steps[0].number} to {window.steps[-1].number}" if window.steps else "none"
        host = "" if self._run is None else f"{self._run.host}, process {self._run.pid}"
        parts = [
            f"<h1>Window {window.index}</h1><p>{escape(host)}. Steps: {numbers}. "
            f"{(window.end_ns - window.start_ns) / 1e6:,.3f} ms.</p>",
            *(f"<p>{escape(note)}</p>" for note in (*window.diagnostics, *self._limits)),
            _table(
                ("Step", *(title for title, _ in _TIMES)),
                (
                    (row.step, *(f"{getattr(row, field) / 1e6:,.3f}" for _, field in _TIMES))
                    for row in self._steps.rows[:ROWS]
                ),
            ),
            _table(("Phase", "Average of a step (ms)", "Share"), self._phases.table.shares()),
            _table(
                ("Kind of operator", "Count", "Total (ms)", "Share"),
                (
                    (kind, f"{count:,}", f"{total / 1e6:,.3f}", f"{total / whole:.1%}")
                    for kind, count, total in by_type(rows)[:ROWS]
                ),
            ),
            _table(
                ("Memory", "Peak (MB)"),
                ((name, f"{peak / 2**20:,.1f}") for name, peak in sorted(self._memory.peaks.items())),
            ),
            _table(
                ("Device", "Peak", "Capacity", "Allocations", "Deallocations"),
                (
                    (
                        each.device,
                        human_bytes(each.peak),
                        human_bytes(each.capacity) if each.capacity else "",
                        f"{each.allocations:,}",
                        f"{each.deallocations:,}",
                    )
                    for each in self._usage.devices
                ),
            ),
            _table(
                ("At the peak allocated in", "Device", "Size", "Share"),
                (
                    (tag.shown, each.device, human_bytes(tag.bytes), f"{tag.share_of(each.peak):.1%}")
                    for each in self._usage.devices
                    for tag in each.tags
                ),
            ),
            _table(
                ("Step", "FLOPs", "Rate", "Share of the declared peak"),
                (
                    (number, human_flops(flops), human_flops(flops / ns * 1e9, "FLOP/s") if ns else "", self._share(flops, ns))
                    for number, flops, ns in self._flops.steps[:ROWS]
                ),
            ),
            _table(
                ("Floating-point operations of", "Count", "FLOPs"),
                (
                    (row.name, f"{row.count:,}", human_flops(row.flops))
                    for row in self._flops.table.rows()[:ROWS]
                ),
            ),
        ]  # fmt: skip
        head = f'<!doctype html><meta charset="utf-8"><title>Window {window.index}</title><style>{_STYLE}</style>'
        return (write_text(self._path, head + "\n".join(parts) + "\n"),)

    def _share(self, flops: int, ns: int) -> str:
        share = utilization_of(flops, ns, self._flops.peak)
        return "" if share is None else f"{share:.1%}"


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    body = ["<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows]
    if not body:
        return ""
    return "<table><tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head) + "</tr>" + "".join(body) + "</table>"

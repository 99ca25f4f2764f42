"""The timeline, a few numbers about it, and the report for a browser."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np

from stepscope.analysis.page.render import report_html
from stepscope.compat.mindspore.output_layout import write_json, write_text
from stepscope.compat.mindspore.products.base import OPERATORS, Product, in_categories, spans
from stepscope.compat.mindspore.products.operators import OperatorTable
from stepscope.exporters.chrome import ChromeTraceExporter
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.export.run import Run
from stepscope.runtime.windows.window import Window


class TraceView(Product):
    """Writes `trace_view.json`, for Perfetto and other readers of Chrome's format.

    Times are Unix time, as in every product, and text, as in MindSpore's. Where it reaches the limit, in MB, the file ends
    with an event that says so, and the events that were left out are counted.
    """

    name = "timeline"

    def __init__(self, directory: Path, limit: int, pretty: bool) -> None:
        self._path = directory / "trace_view.json"
        self._exporter = ChromeTraceExporter(self._path, unix_times=True, max_bytes=limit << 20, on_full="stop")
        self._pretty = pretty

    @property
    def dropped(self) -> int:
        """Events that the size limit kept out."""
        return self._exporter.dropped_cap

    async def open(self, run: Run) -> None:
        await self._exporter.open(run)

    async def add(self, batch: EventBatch) -> None:
        await self._exporter.export(batch)

    async def finish(self, window: Window) -> tuple[Path, ...]:
        await self._exporter.close_window(window)
        await self._exporter.aclose()
        if self._pretty:
            _indent(self._path)
        return (self._path,)

    async def abandon(self) -> None:
        await self._exporter.aclose()


def _indent(path: Path) -> None:
    """Indents a trace in array form, event by event, so that memory does not depend on its size."""
    other = path.with_name(path.name + ".pretty")
    with path.open(encoding="utf-8") as source, other.open("w", encoding="utf-8") as target:
        for line in source:
            text = line.rstrip("\n")
            event, comma = text.removesuffix(","), "," if text.endswith(",") else ""
            if not event.startswith("{"):
                target.write(line)
                continue
            indented = json.dumps(json.loads(event), indent=4, ensure_ascii=False)
            target.write("".join(f"    {part}\n" for part in indented.split("\n"))[:-1] + comma + "\n")
    os.replace(other, path)


class TimelineSummary(Product):
    """Writes `<device>_timeline_summary_<n>.json`, with the keys of MindSpore 2.0.

    `total_time` is the sum of the durations of all operators, ms; `num_of_streams` the rows on which they ran; `num_of_ops` their
    names; `op_exe_times` their runs; `max_scope_name_num` the most scopes that a name has. MindSpore 2.0 counts the operators of
    the CPU twice, so its numbers are twice these.
    """

    name = "timeline summary"

    def __init__(self, directory: Path, device: str, number: int, operators: OperatorTable) -> None:
        self._path = directory / f"{device.lower()}_timeline_summary_{number}.json"
        self._operators = operators
        self._operator_tracks: set[int] = set()
        self._tracks: set[int] = set()

    async def add(self, batch: EventBatch) -> None:
        events = spans(batch.events)
        self._operator_tracks.update(np.unique(events["track"][in_categories(events, OPERATORS)]).tolist())
        self._tracks.update(np.unique(events["track"]).tolist())

    async def finish(self, window: Window) -> tuple[Path, ...]:
        rows = self._operators.rows()
        if not rows:
            return ()
        summary = {
            "total_time": sum(row.total_ns for row in rows) / 1e6,
            "num_of_streams": len(self._operator_tracks or self._tracks),
            "num_of_ops": len({row.name for row in rows}),
            "op_exe_times": sum(row.count for row in rows),
            "max_scope_name_num": max(row.name.count("/") for row in rows),
        }
        return (write_json(self._path, summary),)


class ReportPage(Product):
    """Writes `report.html`: what `stepscope report` says of the window, with all its steps, which it reads from the journal once more."""

    name = "report"

    def __init__(self, directory: Path, journal: Path, peak_flops: float | None) -> None:
        self._path = directory / "report.html"
        self._journal, self._peak_flops = journal, peak_flops

    async def finish(self, window: Window) -> tuple[Path, ...]:
        return (write_text(self._path, report_html(self._journal, window.index, peak_flops=self._peak_flops)),)

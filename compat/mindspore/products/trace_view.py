"""The timeline."""

from __future__ import annotations

import json
import os
from pathlib import Path

from stepscope.exporters.chrome import ChromeTraceExporter
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.export.run import Run
from stepscope.runtime.windows.window import Window


class TraceView:
    """Writes `trace_view.json`, for Perfetto and whatever else reads Chrome's format.

    Times are Unix time, as in every product, and text, as in MindSpore's. Where it reaches the size limit the file ends there, with an event that says so, and what was left out is counted.

    Args:
        directory: for the file.
        limit: size in MB.
        pretty: whether events are written over several lines, with indentation.
    """

    name = "timeline"

    def __init__(self, directory: Path, limit: int, pretty: bool) -> None:
        self.path = directory / "trace_view.json"
        self._exporter = ChromeTraceExporter(self.path, unix_times=True, max_bytes=limit << 20, on_full="stop")
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
            make_pretty(self.path)
        return (self.path,)

    async def abandon(self) -> None:
        await self._exporter.aclose()


def make_pretty(path: Path) -> None:
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

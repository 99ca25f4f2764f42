"""An exporter of one's own, which writes a line of CSV for each span as `spans.csv`."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TextIO

import stepscope as sc
from stepscope.runtime.events import strings


class CsvExporter:
    """One that has a name and these four methods, all of them async, is an exporter; it inherits from nothing."""

    def __init__(self, path: Path, name: str = "csv") -> None:
        self.name = name
        self._path = path
        self._file: TextIO | None = None

    async def open(self, run: sc.exporters.Run) -> None:
        try:
            self._file = self._path.open("w", newline="", encoding="utf-8")
        except OSError as error:
            raise sc.errors.OutputError(f"{self.name} cannot write {self._path}: {error}") from error
        csv.writer(self._file).writerow(["window", "step", "name", "start_ns", "duration_ns"])

    async def export(self, batch: sc.exporters.EventBatch) -> None:
        assert self._file is not None
        # Nothing is awaited from here on, so being cancelled cannot leave half of a batch. Only this exporter waits.
        spans = batch.events[batch.events["kind"] == sc.exporters.Kind.SPAN]
        rows = ((batch.window, span["step"], strings.name_of(span), span["ts"], span["dur"]) for span in spans)
        csv.writer(self._file).writerows(rows)

    async def close_window(self, window: sc.Window) -> None:
        assert self._file is not None
        self._file.flush()

    async def aclose(self) -> None:
        if self._file is not None:
            self._file.close()


if __name__ == "__main__":
    with sc.trace(exporters=[CsvExporter(Path("spans.csv"))], output_dir="run") as profiler:
        for _ in range(3):
            with sc.span("work"), sc.span("part"):
                pass
            profiler.step()
    print(profiler.report())

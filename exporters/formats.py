"""The formats of files by name and ending, for `Window.export`, `stepscope convert` and `stepscope recover`."""

from __future__ import annotations

from pathlib import Path

from stepscope.exporters.chrome import ChromeTraceExporter
from stepscope.exporters.journal import JournalExporter
from stepscope.exporters.parquet import ParquetExporter
from stepscope.exporters.perfetto import PerfettoExporter
from stepscope.runtime.export.formats import register


def _kineto(path: Path) -> ChromeTraceExporter:
    return ChromeTraceExporter(path, form="object")


def _tensorboard(path: Path) -> ChromeTraceExporter:
    return ChromeTraceExporter(path, form="object", dialect="tensorboard")


register("chrome", (".json", ".json.gz"), ChromeTraceExporter)
register("journal", (".journal", ".ssj"), JournalExporter)
register("kineto", (".kineto.json", ".kineto.json.gz"), _kineto)
register("perfetto", (".pftrace", ".pftrace.gz", ".perfetto-trace", ".perfetto-trace.gz"), PerfettoExporter)
register("parquet", (".parquet",), ParquetExporter)
register("tensorboard", (".pt.trace.json", ".pt.trace.json.gz"), _tensorboard)

"""The formats of files by name and ending, for `Window.export`, `stepscope convert` and `stepscope recover`."""

from __future__ import annotations

from functools import partial

from stepscope.exporters.chrome import ChromeTraceExporter
from stepscope.exporters.journal import JournalExporter
from stepscope.exporters.parquet import ParquetExporter
from stepscope.exporters.perfetto import PerfettoExporter
from stepscope.runtime.export.formats import register

register("chrome", (".json", ".json.gz"), ChromeTraceExporter)
register("journal", (".journal", ".ssj"), JournalExporter)
register("kineto", (".kineto.json", ".kineto.json.gz"), partial(ChromeTraceExporter, form="object"))
register("perfetto", (".pftrace", ".pftrace.gz", ".perfetto-trace", ".perfetto-trace.gz"), PerfettoExporter)
register("parquet", (".parquet",), ParquetExporter)
_tensorboard = partial(ChromeTraceExporter, form="object", dialect="tensorboard")
register("tensorboard", (".pt.trace.json", ".pt.trace.json.gz"), _tensorboard)

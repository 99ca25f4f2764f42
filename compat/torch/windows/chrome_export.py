"""Writing one window into one file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from stepscope.compat.torch.windows.finished_window import FinishedWindow
from stepscope.exporters.chrome import ChromeTraceExporter
from stepscope.exporters.files.chrome_file import ChromeFile
from stepscope.runtime.export.formats import staged
from stepscope.runtime.export.run import Run
from stepscope.runtime.files.paths import absolute
from stepscope.runtime.journal.replay import replay_into, run_of
from stepscope.runtime.loop_threads.loop_thread import run_on_own_loop
from stepscope.runtime.session.note import TraceNote


class _TorchTrace(ChromeTraceExporter):
    """A trace that ends as torch's do, unless it is for TensorBoard."""

    async def _create(self, path: Path, run: Run, note: TraceNote) -> ChromeFile:
        ends_as_torch = self._layout.dialect == "kineto"
        return await ChromeFile.create(path, run, replace(self._layout, ends_as_torch=ends_as_torch), note)


def export_window(finished: FinishedWindow, path: Path, facts: Mapping[str, Any]) -> None:
    """Writes a window from its journal as a Chrome trace in object form, with these facts as keys, as torch's tools want it.

    A name that ends in `.pt.trace.json` is for TensorBoard's plugin, `.gz` is compressed.

    Raises:
        ProfilerStateError: if the journal is gone.
        OutputError: if the file cannot be written.
    """
    plugin = path.name.removesuffix(".gz").endswith(".pt.trace.json")
    with finished.reader() as reader, staged(path) as place:
        run = replace(run_of(reader, absolute(path).parent), metadata=lambda: facts)
        exporter = _TorchTrace(place, form="object", dialect="tensorboard" if plugin else "kineto")
        run_on_own_loop(lambda: replay_into(reader, exporter, run, finished.window))

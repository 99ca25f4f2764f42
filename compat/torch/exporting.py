"""Writing one window into one file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from stepscope.compat.torch.cycle import Cycle
from stepscope.exporters.chrome import ChromeTraceExporter
from stepscope.runtime.errors import ProfilerStateError
from stepscope.runtime.export.formats import staged
from stepscope.runtime.files.paths import absolute
from stepscope.runtime.journal import segments
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.journal.replay import replay_into, run_of
from stepscope.runtime.loop_threads.loop_thread import run_on_own_loop


def export_window(cycle: Cycle, path: Path, facts: Mapping[str, Any]) -> None:
    """Plays a window from its journal into a Chrome trace in object form, as torch's tools want it.

    Args:
        cycle: the window.
        path: file to write; `.pt.trace.json` is for TensorBoard's plugin, `.gz` is compressed.
        facts: become keys of the trace.

    Raises:
        ProfilerStateError: if the journal is gone.
        OutputError: if the file cannot be written.
    """
    plugin = path.name.removesuffix(".gz").endswith(".pt.trace.json")
    directory = absolute(path).parent

    async def replay(exporter: ChromeTraceExporter) -> None:
        with JournalReader(cycle.journal) as reader:
            run = msgspec.structs.replace(run_of(reader, directory), metadata=lambda: facts)
            await replay_into(reader, exporter, run, cycle.window)

    if not segments.exists(cycle.journal):
        raise ProfilerStateError(f"the events of window {cycle.window.index} were in {cycle.journal}, which is gone")
    with staged(path) as place:
        exporter = ChromeTraceExporter(place, form="object", dialect="tensorboard" if plugin else "kineto")
        run_on_own_loop(lambda: replay(exporter))

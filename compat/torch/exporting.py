"""Writing one window into one file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio.from_thread
import msgspec

from stepscope.compat.torch.cycle import Cycle
from stepscope.exporters.chrome import ChromeTraceExporter
from stepscope.runtime.errors import ProfilerStateError
from stepscope.runtime.formats import replay_into, run_of, staged
from stepscope.runtime.journal.reader import JournalReader


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
    directory = path.absolute().parent

    async def replay(exporter: ChromeTraceExporter) -> None:
        with JournalReader(cycle.journal) as reader:
            run = msgspec.structs.replace(run_of(reader, directory), metadata=lambda: facts)
            await replay_into(reader, exporter, run, cycle.window)

    if not cycle.journal.exists():
        raise ProfilerStateError(f"the events of window {cycle.window.index} were in {cycle.journal}, which is gone")
    with staged(path) as place:
        exporter = ChromeTraceExporter(place, form="object", dialect="tensorboard" if plugin else "kineto")
        # On a loop of its own, so that it can be called from callbacks and coroutines alike.
        with anyio.from_thread.start_blocking_portal(name="stepscope export") as portal:
            portal.call(replay, exporter)

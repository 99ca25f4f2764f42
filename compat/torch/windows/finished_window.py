"""A finished window of a profile: its events in the journal, and its export to one file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from stepscope.exporters.chrome import ChromeTraceExporter
from stepscope.exporters.files.chrome_file import ChromeFile
from stepscope.runtime.errors import ProfilerStateError
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.export.formats import staged
from stepscope.runtime.export.run import Run
from stepscope.runtime.files.paths import absolute
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.journal.replay import replay_into, run_of
from stepscope.runtime.loop_threads.loop_thread import run_on_own_loop
from stepscope.runtime.session.note import TraceNote
from stepscope.runtime.windows.window import Window


class TorchFlags(msgspec.Struct, frozen=True, kw_only=True):
    """The `profile` arguments that choose what torch's tables have."""

    record_shapes: bool = False
    profile_memory: bool = False
    with_stack: bool = False
    with_flops: bool = False
    with_modules: bool = False
    steps: bool = False
    """True if there is a schedule: only then does torch count steps among its events."""
    use_device: str | None = None
    """The accelerator that is recorded, as torch names it."""


class FinishedWindow(msgspec.Struct, frozen=True, kw_only=True):
    """One finished window. Its events are read from the run's journal, each time anew."""

    torch_flags: TorchFlags
    window: Window
    journal: Path | None
    """`None`: the run keeps none."""
    step_num: int
    """Number of the step that had begun when the window was over."""
    trace_id: str

    def reader(self) -> JournalReader:
        """Opens the journal. Raises `ProfilerStateError` if it was deleted, or there is none."""
        if self.journal is None:
            raise ProfilerStateError("this run keeps no journal (Options.journal is off), of which results are made")
        try:
            return JournalReader(self.journal)
        except FileNotFoundError as error:
            raise ProfilerStateError(
                f"the events of window {self.window.index} were in {self.journal}, which was deleted"
            ) from error

    def batches(self) -> Iterator[EventBatch]:
        """The window's events. Raises `ProfilerStateError` if the journal was deleted."""
        with self.reader() as reader:
            for item in reader.items(self.window.index):
                if isinstance(item, EventBatch):
                    yield item


class _TorchTrace(ChromeTraceExporter):
    """A trace that ends as torch's do, unless it is for TensorBoard."""

    async def _create(self, path: Path, run: Run, note: TraceNote) -> ChromeFile:
        ends_as_torch = self._layout.dialect == "kineto"
        return await ChromeFile.create(path, run, replace(self._layout, ends_as_torch=ends_as_torch), note)


def export_window(finished: FinishedWindow, path: Path, facts: Mapping[str, Any]) -> None:
    """Writes a window from its journal as a Chrome trace in object form, with these facts as keys, as torch's tools want it.

    A name that ends in `.pt.trace.json` is for TensorBoard's plugin, `.gz` is compressed.

    Raises:
        ProfilerStateError: if the journal was deleted.
        OutputError: if the file cannot be written.
    """
    plugin = path.name.removesuffix(".gz").endswith(".pt.trace.json")
    with finished.reader() as reader, staged(path) as place:
        run = replace(run_of(reader, absolute(path).parent), metadata=lambda: facts)
        exporter = _TorchTrace(place, form="object", dialect="tensorboard" if plugin else "kineto")
        run_on_own_loop(lambda: replay_into(reader, exporter, run, finished.window))

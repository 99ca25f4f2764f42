"""One finished window of a profile, and where its events are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from stepscope.runtime.errors import ProfilerStateError
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.journal.reader import JournalReader
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
    """One finished window. What is read of it comes from the run's journal, each time anew."""

    torch_flags: TorchFlags
    window: Window
    journal: Path | None
    """`None`: the run keeps none."""
    step_num: int
    """Number of the step that had begun when the window was over."""
    trace_id: str

    def reader(self) -> JournalReader:
        """Opens the journal.

        Raises:
            ProfilerStateError: if it is gone, or there is none.
        """
        if self.journal is None:
            raise ProfilerStateError("this run keeps no journal (Options.journal is off), of which results are made")
        try:
            return JournalReader(self.journal)
        except FileNotFoundError as error:
            raise ProfilerStateError(
                f"the events of window {self.window.index} were in {self.journal}, which is gone"
            ) from error

    def batches(self) -> Iterator[EventBatch]:
        """The window's events.

        Raises:
            ProfilerStateError: if the journal is gone.
        """
        with self.reader() as reader:
            for item in reader.items(self.window.index):
                if isinstance(item, EventBatch):
                    yield item

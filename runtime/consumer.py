"""The contract of an exporter, as the runtime sees it; `stepscope.exporters.base` gives it its public name."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from stepscope.runtime.events import EventBatch
from stepscope.runtime.run import Run
from stepscope.runtime.window import Window


@runtime_checkable
class Consumer(Protocol):
    """A consumer of events, with a bounded queue, a thread and an event loop of its own.

    A call that blocks holds up nothing but this exporter; but one that awaits can be cancelled at the deadline for
    closing, and one that blocks is left to itself then.

    Life: `open` once, then `export` and `close_window` in any number, `aclose` once. Calls never overlap.
    Batches of different windows may alternate; `close_window` is the last call for its window.
    What is raised is counted, kept and shown by the profiler: it costs this exporter's output only. After an
    exception of `open` nothing more is called; after one of `export` that batch counts as dropped.
    An exporter with a size limit counts the events that it refused in an attribute `dropped_cap`.
    """

    name: str
    """Names the output in ledgers and reports."""

    async def open(self, run: Run) -> None:
        """Prepares the output.

        Raises:
            OutputError: if it cannot be written; says where and why.
        """
        ...

    async def export(self, batch: EventBatch) -> None:
        """Takes one batch of one window. Its arrays are shared and read-only."""
        ...

    async def close_window(self, window: Window) -> None:
        """The window is complete: its steps, times, ledger and metadata are final."""
        ...

    async def aclose(self) -> None:
        """Flushes and closes. Called under a deadline; must leave readable output behind even when cancelled."""
        ...


@runtime_checkable
class Discarding(Protocol):
    """What an exporter may have besides, if it can take a window back that it has closed."""

    async def discard_window(self, window: int) -> None:
        """Deletes what was written of a window: newer and slower ones have been saved since. May be called twice."""
        ...

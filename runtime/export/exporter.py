"""The contract of an exporter, as the runtime sees it; `stepscope.exporters.base` gives it its public name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, runtime_checkable

import msgspec

from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.export.delivery_outcome import UnsentFiles
from stepscope.runtime.export.run import Run
from stepscope.runtime.windows.window import Window


@runtime_checkable
class Exporter(Protocol):
    """A consumer of events, with a bounded queue, a thread and an event loop of its own.

    A call that blocks holds up nothing but this exporter; but one that awaits can be cancelled at the deadline for
    closing, and one that blocks is left to itself then.

    Life: `open` once, then `export` and `close_window` in any number, `aclose` once. Calls never overlap.
    Batches of different windows may alternate; `close_window` is the last call for its window.
    What is raised is counted, kept and shown by the profiler: it costs this exporter's output only. After an
    exception of `open` nothing more is called; after one of `export` that batch counts as dropped, except for what a
    `Counting` exporter has written of it.
    One whose output cannot be read unless `aclose` has completed it says so with an attribute `whole_or_nothing` that is true:
    if that fails, all of its events count as dropped.
    An exporter with a size limit counts the events that it refused in an attribute `dropped_cap`. One that sends events
    later, or leaves some out for reasons of its own, is `SupportsDeferredAck`.
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
class SupportsDiscard(Protocol):
    """What an exporter may have besides, if it can take a window back that it has closed."""

    async def discard_window(self, window: int) -> None:
        """Deletes what was written of a window: newer and slower ones have been saved since. May be called twice."""
        ...


@runtime_checkable
class SupportsEarlyClose(Protocol):
    """What an exporter may have besides, if it can be long in ending, such as one that tries again what has failed."""

    def closing(self) -> None:
        """The end has come: nothing more is offered, and what is queued is to be exported by the deadline for closing.

        Called once, on the exporter's loop: between its other methods or while one of them awaits, `open` included.
        """
        ...


class DeliveryResult(msgspec.Struct, frozen=True):
    """What became of some events of a window that an exporter had kept."""

    window: int
    exported: int = 0
    dropped: Mapping[str, int] = {}
    """By reason."""
    kept: int = 0
    """Of those exported: events that lie in files until they are sent."""


@runtime_checkable
class SupportsDeferredAck(Protocol):
    """What an exporter has besides, if events are not exported yet when `export` returns, such as one that collects them.

    The events that it was given are in flight until `settle` tells of them, also those of an `export` that raised.
    What it never tells of is dropped as `closed` in the end.
    """

    def settle(self) -> Iterable[DeliveryResult]:
        """What became of events since the last call; asked on the exporter's thread after each of its methods."""
        ...


class Lost(msgspec.Struct, frozen=True):
    """Events that an exporter had written, and that no file has any more."""

    events: int
    reason: str
    """For the ledger: `deleted` or `error`."""
    window: int | None = None
    """`None`: the events that were written last, of whatever window."""


@runtime_checkable
class Counting(Protocol):
    """What an exporter may have besides, if it counts the events in its files.

    So the accounts are exact where `export` raises after a part of the batch was written, as on a full disk, and where a
    file is deleted while it is written.
    """

    @property
    def written(self) -> int:
        """Events written so far; it never decreases."""
        ...

    def take_lost(self) -> Iterable[Lost]:
        """What was lost since the last call; asked on the exporter's thread after each of its methods."""
        ...


@runtime_checkable
class SupportsUnsentFiles(Protocol):
    """What a settling exporter has besides, if what the other end has not confirmed stays in files when the run ends.

    One that was cancelled at the deadline, and then says where these are, has ended in order.
    """

    kept: UnsentFiles | None
    """Where the files are, once it is closed; `None` if there are none."""

"""The contract of an exporter; its public module is `stepscope.exporters.base`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, runtime_checkable

import msgspec

from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.export.run import Run
from stepscope.runtime.windows.window import Window


@runtime_checkable
class Exporter(Protocol):
    """A consumer of events. Each has its own bounded queue, thread and event loop.

    A call that blocks delays this exporter only. At the deadline for closing, a call that awaits is cancelled, and the thread of a
    call that blocks is abandoned.

    Order of calls: `open` once, then `export` and `close_window` any number of times, `aclose` once. Calls never overlap. Batches of
    different windows may alternate; `close_window` is the last call for its window.

    Exceptions are counted and stored, and the profiler shows them. They affect the output of this exporter only. After an exception
    of `open` no method is called. After one of `export` the batch counts as dropped, except for events that a `Counting` exporter
    has written.

    If the output can be read only after a successful `aclose`, set an attribute `whole_or_nothing` to true: if `aclose` fails, all
    events count as dropped. An exporter with a size limit counts refused events in an attribute `dropped_cap`. One that sends
    events later, or drops some for other reasons, is `SupportsDeferredAck`.
    """

    name: str
    """Name of the output in ledgers and reports."""

    async def open(self, run: Run) -> None:
        """Prepares the output.

        Raises:
            OutputError: if it cannot be written, with the place and the reason.
        """
        ...

    async def export(self, batch: EventBatch) -> None:
        """Exports one batch of one window. Its arrays are shared and read-only."""
        ...

    async def close_window(self, window: Window) -> None:
        """The window is complete: its steps, times, ledger and metadata are final."""
        ...

    async def aclose(self) -> None:
        """Flushes and closes. Called with a deadline; the output must be readable even if it is cancelled."""
        ...


@runtime_checkable
class SupportsDiscard(Protocol):
    """An exporter that can delete a closed window."""

    async def discard_window(self, window: int) -> None:
        """Deletes a window, as newer or slower ones were saved since. May be called twice for one window."""
        ...


@runtime_checkable
class SupportsEarlyClose(Protocol):
    """An exporter that may need long to close, such as one that retries."""

    def closing(self) -> None:
        """The profiler closes: no further batches are queued, and the queued ones should be exported by the deadline for closing.

        Called once, on the exporter's loop: between other methods, or while one of them awaits, including `open`.
        """
        ...


class DeliveryResult(msgspec.Struct, frozen=True):
    """Outcome of events of a window that were in flight."""

    window: int
    exported: int = 0
    dropped: Mapping[str, int] = {}
    """Lost events by reason."""
    unsent: int = 0
    """Number of exported events that are in files until they are sent."""


@runtime_checkable
class SupportsDeferredAck(Protocol):
    """An exporter whose `export` returns before the events are exported, such as one that collects them.

    Events are in flight until `delivery_results` reports their outcome, also those of an `export` that raised. Unreported events count as
    dropped in the end, with the reason `closed`.
    """

    def delivery_results(self) -> Iterable[DeliveryResult]:
        """Returns outcomes since the last call. Called on the exporter's thread, after each of its methods, or at a group's end."""
        ...


class Lost(msgspec.Struct, frozen=True):
    """Events that an exporter had written and that were lost."""

    events: int
    reason: str
    """Reason in the ledger: `deleted`, `cap` or `error`."""
    window: int | None = None
    """`None`: the events that were written last, of any window."""


@runtime_checkable
class Counting(Protocol):
    """An exporter that counts the events in its files.

    So the accounts are exact if `export` raises after a part of the batch was written, such as on a full disk, and if a file is
    deleted while it is written.
    """

    @property
    def written(self) -> int:
        """Number of events written so far. It never decreases."""
        ...

    def take_lost(self) -> Iterable[Lost]:
        """Returns losses since the last call. Called on the exporter's thread, after each of its methods, or at a group's end."""
        ...


@runtime_checkable
class SupportsGroupedWrites(Protocol):
    """A `Counting` exporter that can put the small writes of several calls together.

    At each write another thread may take the interpreter's lock, and this one waits for it again: many small writes slow the
    program down.
    """

    def begin_group(self) -> None:
        """The next calls may keep small writes in memory until `end_group`."""
        ...

    async def end_group(self) -> None:
        """Writes them. `take_lost` returns events that the system refused.

        Raises:
            OutputError: if it refused any.
        """
        ...


@runtime_checkable
class SupportsCounts(Protocol):
    """An exporter that does not always need the events, such as one that sends the run's journal.

    While `needs_events` is false, `export` gets batches whose events are all zero: only their number counts. They take no room in the
    queue, so none is dropped there.
    """

    needs_events: bool


class UnsentFiles(msgspec.Struct, frozen=True):
    """Files of an exporter with events that the other end has not confirmed."""

    place: str
    """The directory."""
    why: str
    """Why they were not confirmed."""
    command: str
    """Command that sends them."""


@runtime_checkable
class SupportsUnsentFiles(Protocol):
    """A `SupportsDeferredAck` exporter that writes unconfirmed events to files when the run ends.

    If it is cancelled at the deadline and has such files, that is no error.
    """

    unsent_files: UnsentFiles | None
    """The files, once it is closed; `None` if there are none."""

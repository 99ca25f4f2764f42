"""The contract of a backend, a producer of events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.sources.sink import BackendReport, Sink

__all__ = ["Adjustable", "Backend", "BackendReport", "Sink", "Streaming"]


@runtime_checkable
class Backend(Protocol):
    """A producer of events.

    Life: `open` once, `transition` at every change of the profiler's action, `aclose` once. A profiler that is
    started again opens its backends again. Events go to the sink as blocks, from any thread, at any time, in any
    order of their timestamps; which step and window they belong to is decided by the timestamp.
    A backend states its progress by watermarks: a window closes when every backend has passed its end.
    The runtime gives each backend a thread with an event loop, so one that blocks there costs its own events only. `aclose` and the
    coroutines that go to `Sink.run_soon` run there, and everything else unless it is bound to a thread.
    One that derives events from those of the recorder, such as links between them, has a method `derive(batch)`, which returns a
    block or `None`. It is called on the loop that all profilers share, also while the backend's thread calls it: it is to be a pure
    function of the batch, and to return at once. Spans that are still open at the end of their window are not among the batches.
    One that is bound to a thread may have a method `orphaned()`: that thread has ended without switching it off. It may have
    an attribute `one_thread`, true while it records what that thread does and nothing of others: a window in which it met
    with nothing while others recorded names the threads.
    One that can do less than it was asked for, to keep within an overhead budget, has a method `set_detail(detail)` as
    well. It gets a `stepscope.runtime.schedule.detail.Detail` where `transition` is called, and may follow it from the next window on:
    without `operators` it is to leave out what costs most, unless that was `asked`.
    """

    name: str
    """Names the source in ledgers and traces; unique in a profiler."""
    thread_bound: bool
    """True: `open` and `transition` are called on the training thread, and `transition` only on the thread of `open`: at
    once if the change is made there, else at that thread's next `step()`. False: on the thread that the runtime gives it."""

    def open(self, sink: Sink) -> None:
        """Opens the source, which delivers its events to the sink.

        Raises:
            BackendError: if the source cannot be used here; says why and what to do.
        """
        ...

    def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        """The profiler's action changes at time `at` (ns, this process's monotonic clock).

        Recording begins when `after` records and `before` does not. Two windows may follow each other directly:
        then `before` is RECORD_AND_SAVE. When recording ends, what is pending is delivered soon afterwards, and
        the sink's watermark passes `at`.
        """
        ...

    async def aclose(self) -> None:
        """Delivers the remaining events and releases everything. Runs on the backend's thread and loop, which end afterwards,
        under the profiler's deadline."""
        ...

    def report(self) -> BackendReport:
        """Returns a report of events, costs and failures. Any time, any thread."""
        ...


@runtime_checkable
class Streaming(Protocol):
    """The interface of a backend that can deliver either at the end of a window only, or while it goes on."""

    def stream_only(self) -> None:
        """Called before `open` by a profiler that does not know beforehand when a window ends.

        Raises:
            ValueError: if the backend's settings leave only the other way; says what to do.
        """
        ...


@runtime_checkable
class Adjustable(Protocol):
    """The interface of a backend whose windows can have more or less detail than it was made for."""

    def can_choose(self, what: str, on: bool) -> str | None:
        """Whether a kind of data can be switched on, or off, for a window. Any time, any thread.

        Args:
            what: a field of `stepscope.control.WindowDetail`, such as `stacks`; `every` is not asked about.
            on: whether the window is to have it.

        Returns:
            Empty if so; else why not, and what to do; `None` if this backend has nothing to do with it.
        """
        ...

    def choose(self, chosen: Mapping[str, bool]) -> None:
        """Chooses for windows that begin from now on, until the next call: the named kinds are switched on or
        off, everything else is as the backend was made. Called where `transition` is called."""
        ...

"""Where a backend puts its events."""

from __future__ import annotations

from typing import Protocol

from stepscope.runtime.events.record import Block
from stepscope.runtime.settings.documented import Documented


class BackendReport(Documented, frozen=True, kw_only=True):
    """What a backend says of itself in the trust report."""

    mode: str = ""
    """How it records, such as `stream` or `kineto`."""
    clock: str = "CLOCK_MONOTONIC"
    """Clock of its timestamps, and how it was mapped to ours, with the bound of the error."""
    training_thread_ns: int = 0
    """Time that it took from the training thread at transitions, in ns."""
    notes: tuple[str, ...] = ()
    """What could not be captured, and why."""


class Sink(Protocol):
    """Takes events from one backend. Every method may be called from any thread and never blocks."""

    def deliver(
        self,
        events: Block,
        args: bytes = b"",
        *,
        watermark: int | None = None,
        launched_before: int | None = None,
    ) -> int:
        """Hands over a block, in our clock. Its memory belongs to the runtime from now on.

        Names, categories, keys and tracks are ids of the process's tables. `args_at` points into `args`.

        Args:
            events: the block.
            args: the heap of their arguments.
            watermark: as if `watermark` were called afterwards.
            launched_before: for what a device does behind its host: all of the block was launched before this time (ns, our
                clock), and belongs to the window that then was recorded, whole, although it ran on after that.

        Returns:
            How many of the events were taken: the first ones. Those that the inbox had no room for were dropped, and counted.

        Raises:
            TypeError: if the block, its arguments or the watermark are none; nothing is taken then.
            ValueError: if the watermark is out of range; likewise.
            ClosedError: after the profiler was closed.
        """
        ...

    def watermark(self, at: int) -> None:
        """States that every event which began before `at` (ns, our clock) was delivered or reported dropped.

        Raises:
            TypeError: if `at` is no number.
            ValueError: if it does not fit 64 bits.
        """
        ...

    def dropped(self, count: int, reason: str, at: int) -> None:
        """Reports `count` events that the source itself lost around time `at`; they count as produced.

        Raises:
            TypeError: if `count` or `at` is no number, or `reason` no str.
            ValueError: if `count` is below 0, or a number does not fit 64 bits.
        """
        ...

    def missing(self, start: int, end: int, why: str) -> None:
        """States that the source recorded nothing from `start` to `end` (ns, our clock), or that all of it is lost, and that
        nobody knows how many events that is. A window that this time reaches into is incomplete, and says why.

        Args:
            why: completes the sentence "nothing was recorded: ...", and says what to do about it, if anything.

        Raises:
            TypeError: if a time is no number, or `why` no str.
            ValueError: if a number does not fit 64 bits.
        """
        ...

    def advancing(self) -> None:
        """States that the source works on what it has yet to deliver: windows that wait for it have `Options.linger`
        anew, and closing gives it up to three quarters of `Options.close_timeout` rather than half."""
        ...

    def run_soon(self, work: object) -> None:
        """Schedules a coroutine function without arguments on the backend's loop. One that has not ended when `aclose` has is
        cancelled."""
        ...

"""The sink of a backend, for its events."""

from __future__ import annotations

from typing import Protocol

from stepscope.runtime.events.record import Block
from stepscope.runtime.settings.documented import Documented


class BackendReport(Documented, frozen=True, kw_only=True):
    """The report of a backend, for the trust report."""

    mode: str = ""
    """How it records, such as `stream` or `kineto`."""
    clock: str = "CLOCK_MONOTONIC"
    """Clock of its timestamps, and how they were converted to our clock, with a bound of the error."""
    training_thread_ns: int = 0
    """Time that its transitions cost the training thread, in ns."""
    notes: tuple[str, ...] = ()
    """Texts on what could not be captured, and why."""


class Sink(Protocol):
    """Accepts the events of one backend. Any thread may call any method. No method blocks."""

    def deliver(
        self,
        events: Block,
        args: bytes = b"",
        *,
        watermark: int | None = None,
        launched_before: int | None = None,
    ) -> int:
        """Delivers a block, with times of our clock. The runtime owns its memory afterwards.

        Names, categories, keys and tracks are ids of the process's tables. `args_at` points into `args`.

        Args:
            events: the block.
            args: the heap of their arguments.
            watermark: the same as a subsequent call of `watermark`.
            launched_before: for events of a device that runs behind its host. The host launched all of them before this time (ns,
                our clock). They belong to the window of that time as a whole, even if they ran later.

        Returns:
            Number of accepted events, the first of the block. If the inbox is full, the others are dropped and counted.

        Raises:
            TypeError: if the block, its arguments or the watermark are invalid. No event is accepted then.
            ValueError: if the watermark, or what an event says, is out of range. No event is accepted then.
            ClosedError: after the profiler was closed.
        """
        ...

    def watermark(self, at: int) -> None:
        """States that every event that began before `at` (ns, our clock) was delivered, or reported as dropped.

        Raises:
            TypeError: if `at` is no number.
            ValueError: if it does not fit 64 bits.
        """
        ...

    def dropped(self, count: int, reason: str, at: int) -> None:
        """Reports `count` events that the source itself lost around the time `at`. They count as produced.

        Raises:
            TypeError: if `count` or `at` is no number, or `reason` no str.
            ValueError: if `count` is below 0, or a number does not fit 64 bits.
        """
        ...

    def missing(self, start: int, end: int, why: str) -> None:
        """States that the source recorded nothing from `start` to `end` (ns, our clock), or lost an unknown number of events. A
        window that overlaps this time is incomplete, and its diagnostics have the reason.

        Args:
            why: completes the sentence "nothing was recorded: ...", with advice if there is any.

        Raises:
            TypeError: if a time is no number, or `why` no str.
            ValueError: if a number does not fit 64 bits.
        """
        ...

    def advancing(self) -> None:
        """States that the source makes progress with late events. For windows that wait for it, `Options.linger` begins anew, and
        closing waits up to three quarters of `Options.close_timeout` instead of half."""
        ...

    def run_soon(self, work: object) -> None:
        """Schedules a coroutine function without arguments on the backend's loop. It is cancelled if it has not ended when `aclose`
        ends."""
        ...

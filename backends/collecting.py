"""A sink that stores all deliveries: to test a backend without a profiler."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from stepscope.runtime.errors import ClosedError
from stepscope.runtime.events import clock
from stepscope.runtime.events.record import Block, empty_block, join_blocks
from stepscope.runtime.threads.native_threads import Condition


class Delivery(msgspec.Struct, frozen=True):
    """A call of `Sink.deliver`, or a watermark (then without events)."""

    at: int
    """Time of the call, in ns."""
    events: Block
    args: bytes
    watermark: int | None
    """The watermark that came with it, after its events."""
    promised: int | None
    """The highest watermark stated before: no event may begin earlier than this."""
    launched_before: int | None = None
    """The time before which its events were launched on a device, as it was given."""


class Loss(msgspec.Struct, frozen=True):
    """A call of `Sink.dropped`."""

    count: int
    reason: str
    at: int


class Absence(msgspec.Struct, frozen=True):
    """A call of `Sink.missing`."""

    start: int
    end: int
    why: str


class CollectingSink:
    """Keeps every block, in the order of arrival. Any thread may call it.

    Args:
        start: runs a coroutine function on a loop; without it, work is kept in `work`, for the caller to run.
        accept: whether there is room for a block of that many bytes; by default there always is.
    """

    def __init__(
        self, start: Callable[[object], object] | None = None, accept: Callable[[int], bool] = lambda nbytes: True
    ) -> None:
        self._start, self._accept = start, accept
        self._changed = Condition()
        self.deliveries: list[Delivery] = []
        self.losses: list[Loss] = []
        self.absences: list[Absence] = []
        self.work: list[object] = []
        self.refused = 0
        """Events of blocks for which there was no room."""
        self.passed: int | None = None
        """The highest watermark so far."""
        self.advances = 0
        self.closed = False

    def deliver(
        self,
        events: Block,
        args: bytes = b"",
        *,
        watermark: int | None = None,
        launched_before: int | None = None,
    ) -> int:
        """Stores a block. Raises `ClosedError` after `close`."""
        with self._changed:
            if self.closed:
                raise ClosedError("the sink is closed: this backend delivers after aclose()")
            if not self._accept(events.nbytes + len(args)):
                self.refused += len(events)
                events, args = empty_block(), b""
            self._append(events, args, watermark, launched_before)
        return len(events)

    def watermark(self, at: int) -> None:
        """Stores the watermark: everything before `at` was delivered."""
        with self._changed:
            self._append(empty_block(), b"", at)

    def _append(self, events: Block, args: bytes, watermark: int | None, launched_before: int | None = None) -> None:
        self.deliveries.append(Delivery(clock.now(), events, args, watermark, self.passed, launched_before))
        if watermark is not None and (self.passed is None or watermark > self.passed):
            self.passed = watermark
        self._changed.notify_all()

    def dropped(self, count: int, reason: str, at: int) -> None:
        """Stores the report of a loss."""
        with self._changed:
            self.losses.append(Loss(count, reason, at))
            self._changed.notify_all()

    def missing(self, start: int, end: int, why: str) -> None:
        """Stores the report of a time for which nothing was recorded."""
        with self._changed:
            self.absences.append(Absence(start, end, why))
            self._changed.notify_all()

    def advancing(self) -> None:
        """Counts the reports of progress."""
        self.advances += 1

    def run_soon(self, work: object) -> None:
        """Runs a coroutine function, or stores it."""
        if self._start is None:
            self.work.append(work)
        else:
            self._start(work)

    def close(self) -> None:
        """Refuses further blocks, as a profiler does that has ended."""
        with self._changed:
            self.closed = True

    @property
    def events(self) -> Block:
        """All events in the order of arrival. Their arguments are in the deliveries."""
        blocks = [delivery.events for delivery in self.deliveries]
        return join_blocks(blocks)

    @property
    def watermarks(self) -> list[int]:
        """Every watermark stated, in order."""
        return [delivery.watermark for delivery in self.deliveries if delivery.watermark is not None]

    def wait_past(self, at: int, timeout: float) -> bool:
        """Waits until a watermark of `at` or more was stated; False after `timeout` seconds without."""
        with self._changed:
            return self._changed.wait_for(lambda: self.passed is not None and self.passed >= at, timeout)

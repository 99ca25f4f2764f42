"""An outlet: one exporter with its bounded queue, its task and its accounts."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable

import anyio
import msgspec

from stepscope.runtime.consumer import Consumer, Discarding
from stepscope.runtime.events import EventBatch
from stepscope.runtime.ledger import Ledger, OutputLedger
from stepscope.runtime.run import Run
from stepscope.runtime.window import Window

log = logging.getLogger("stepscope")

PATIENCE = 0.25
"""Seconds that the loop waits at most for one batch of an exporter that is behind."""


class OutletStatistics(msgspec.Struct, frozen=True):
    """Accounts of one exporter over the run."""

    name: str
    ledger: OutputLedger
    batches: int
    waiting_batches: int
    waiting_bytes: int
    peak_bytes: int
    errors: int
    first_error: str
    busy_ns: int
    """Time spent in the exporter's calls, in ns."""


class WindowClosed(msgspec.Struct, frozen=True):
    """The last item of a window in a queue."""

    window: Window


class WindowDiscarded(msgspec.Struct, frozen=True):
    """A window that was closed is to be deleted."""

    index: int


Item = EventBatch | WindowClosed | WindowDiscarded


class Outlet:
    """Feeds one exporter at its own speed. What it does wrong costs its own output only."""

    def __init__(
        self,
        exporter: Consumer,
        run: Run,
        max_bytes: int,
        now: Callable[[], int],
        outputs: Callable[[int], dict[str, OutputLedger]] = lambda _: {},
    ) -> None:
        """Args: the exporter; the run; limit of the queue in bytes; our clock; accounts of all exporters by window."""
        self.exporter = exporter
        self.name = exporter.name
        self.errors: list[BaseException] = []
        """The first errors, oldest first; all are counted."""
        self._run = run
        self._max = max_bytes
        self._now = now
        self._outputs = outputs
        self._queue: deque[Item] = deque()
        self._wake = anyio.Event()
        self._idle = anyio.Event()
        self._closing = self._broken = False
        self._bytes = self._peak = self._batches = self._error_count = self._busy = 0
        self._offered: Counter[int] = Counter()
        self._exported: Counter[int] = Counter()
        self._dropped: dict[int, Counter[str]] = {}
        self._cap_seen = 0
        self._closed: set[int] = set()
        self._window_done = anyio.Event()
        self._progress = anyio.Event()
        self._stuck = False
        self._batches_seen = (0, 0)
        self._windows_given = 0

    # producer's side, on the loop

    def offer(self, batch: EventBatch) -> None:
        """Queues a batch, or drops and counts it."""
        count = len(batch)
        self._offered[batch.window] += count
        if self._broken:
            self._drop(batch.window, "error", count)
        elif self._bytes + batch.nbytes > self._max and self._queue:
            self._drop(batch.window, "queue", count)
        else:
            self._bytes += batch.nbytes
            self._peak = max(self._peak, self._bytes)
            self._put(batch)

    def close_window(self, window: Window) -> None:
        """Queues the end of a window; it always fits."""
        self._windows_given += 1
        self._put(WindowClosed(window))

    def discard_window(self, index: int) -> None:
        """Queues the deletion of a window, for exporters that can do that."""
        if isinstance(self.exporter, Discarding):
            self._put(WindowDiscarded(index))

    @property
    def windows_waiting(self) -> int:
        """Windows that ended and that the exporter has not closed yet."""
        return self._windows_given - len(self._closed)

    def behind(self) -> bool:
        """Whether more than half of its queue waits while it gets on: what is not urgent is better held back."""
        now = self._now()
        full = self._bytes > self._max // 2
        if not full or self._batches != self._batches_seen[0]:
            self._batches_seen = (self._batches, now)
        return full and now - self._batches_seen[1] < PATIENCE * 1e9

    async def relieve(self) -> None:
        """Waits while more than half of the queue is full and the exporter gets on with it.

        So a burst passes without a drop. One that makes no progress for `PATIENCE` seconds is not waited for again
        until it does: it must not hold up the others.
        """
        while self._bytes > self._max // 2 and not self._stuck:
            with anyio.move_on_after(PATIENCE) as waited:
                await self._progress.wait()
            self._stuck = waited.cancelled_caught

    def _put(self, item: Item) -> None:
        self._queue.append(item)
        self._idle = anyio.Event() if self._idle.is_set() else self._idle
        self._wake.set()

    def _drop(self, window: int, reason: str, count: int) -> None:
        if count:
            self._dropped.setdefault(window, Counter())[reason] += count

    # consumer's side: the task

    async def run(self) -> None:
        """Opens the exporter, feeds it until `finish()` and the queue is empty, closes it."""
        if not await self._guard("open", lambda: self.exporter.open(self._run)):
            self._broken = True
        while True:
            while self._queue:
                await self._handle(self._queue.popleft())
                self._stuck = False
                self._progress.set()
                self._progress = anyio.Event()
            self._idle.set()
            if self._closing:
                break
            self._wake = anyio.Event()
            await self._wake.wait()
        if not self._broken:
            await self._guard("aclose", self.exporter.aclose)

    async def _handle(self, item: Item) -> None:
        if isinstance(item, WindowDiscarded):
            exporter = self.exporter
            if not self._broken and isinstance(exporter, Discarding):
                await self._guard("discard_window", lambda: exporter.discard_window(item.index))
            return
        if isinstance(item, WindowClosed):
            if not self._broken:
                window = msgspec.structs.replace(item.window, ledger=self._with_own(item.window))
                await self._guard("close_window", lambda: self.exporter.close_window(window))
            self._closed.add(item.window.index)
            self._window_done.set()
            self._window_done = anyio.Event()
            return
        self._bytes -= item.nbytes
        if self._broken:
            self._drop(item.window, "error", len(item))
            return
        self._batches += 1
        try:
            done = await self._guard("export", lambda: self.exporter.export(item))
        except BaseException:
            self._drop(item.window, "closed", len(item))
            raise
        cap = getattr(self.exporter, "dropped_cap", 0)
        refused, self._cap_seen = min(cap - self._cap_seen, len(item)), cap
        self._drop(item.window, "cap", refused)
        if done:
            self._exported[item.window] += len(item) - refused
        else:
            self._drop(item.window, "error", len(item) - refused)

    async def _guard(self, what: str, call: Callable[[], Awaitable[None]]) -> bool:
        """Awaits a call of the exporter; what it raises is kept. Only a cancellation from outside passes."""
        start = self._now()
        try:
            await call()
        except BaseException as error:
            cancelled = isinstance(error, anyio.get_cancelled_exc_class())
            if isinstance(error, GeneratorExit) or cancelled and anyio.get_current_task().has_pending_cancellation():
                raise
            self._keep(what, error)
            return False
        finally:
            self._busy += self._now() - start
        return True

    def _keep(self, what: str, error: BaseException) -> None:
        self._error_count += 1
        if len(self.errors) < 16:
            error.add_note(f"raised by exporter {self.name!r} in {what}()")
            self.errors.append(error)
        if self._error_count == 1:
            log.error("exporter %r failed in %s(): %s: %s", self.name, what, type(error).__name__, error)

    async def window_closed(self, index: int) -> None:
        """Returns when the exporter has closed this window, or has tried to."""
        while index not in self._closed:
            await self._window_done.wait()

    def finish(self) -> None:
        """No more will be offered."""
        self._closing = True
        self._wake.set()

    async def drained(self) -> None:
        """Returns when the queue is empty and nothing is in the exporter's hands."""
        await self._idle.wait()

    def abandon(self) -> None:
        """The deadline has passed: what still waits is dropped, and counted."""
        while self._queue:
            item = self._queue.popleft()
            if isinstance(item, EventBatch):
                self._drop(item.window, "closed", len(item))
        self._bytes = 0

    # accounts

    def ledger(self, window: int) -> OutputLedger:
        """Accounts of one window."""
        return _ledger(self._offered[window], self._exported[window], self._dropped.get(window, Counter()))

    def _with_own(self, window: Window) -> Ledger:
        ledger = window.ledger
        return msgspec.structs.replace(
            ledger, outputs={**self._outputs(window.index), self.name: self.ledger(window.index)}
        )

    def statistics(self) -> OutletStatistics:
        """Accounts so far."""
        dropped: Counter[str] = Counter()
        for reasons in self._dropped.values():
            dropped.update(reasons)
        first = self.errors[0] if self.errors else None
        return OutletStatistics(
            name=self.name,
            ledger=_ledger(sum(self._offered.values()), sum(self._exported.values()), dropped),
            batches=self._batches,
            waiting_batches=len(self._queue),
            waiting_bytes=self._bytes,
            peak_bytes=self._peak,
            errors=self._error_count,
            first_error="" if first is None else f"{type(first).__name__}: {first}",
            busy_ns=self._busy,
        )


def _ledger(offered: int, exported: int, dropped: Counter[str]) -> OutputLedger:
    return OutputLedger(offered, exported, dict(dropped), offered - exported - dropped.total())

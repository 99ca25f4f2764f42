"""The worker of one exporter: its bounded queue, its thread and its accounts."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

import anyio
import msgspec

from stepscope.runtime.accounting.error_log import ErrorLog
from stepscope.runtime.accounting.ledger import Ledger, OutputLedger
from stepscope.runtime.events.record import EventBatch, cut_block
from stepscope.runtime.export.delivery_outcome import UnsentFiles, counted, remedy
from stepscope.runtime.export.exporter import (
    Counting,
    Exporter,
    Lost,
    SupportsDeferredAck,
    SupportsDiscard,
    SupportsEarlyClose,
    SupportsUnsentFiles,
)
from stepscope.runtime.export.exporter_accounts import KEPT_WINDOWS, Accounts
from stepscope.runtime.export.exporter_statistics import ExporterStatistics
from stepscope.runtime.export.run import Run
from stepscope.runtime.files.paths import readable
from stepscope.runtime.loop_threads.condition import LoopCondition
from stepscope.runtime.loop_threads.loop_thread import LoopThread
from stepscope.runtime.threads import locks
from stepscope.runtime.threads.user_code import GRACE, cancels, is_programs, run_async
from stepscope.runtime.windows.window import Window

log = logging.getLogger("stepscope")

PATIENCE = 0.25
"""Seconds that the loop waits at most for one batch of an exporter that is behind."""

WINDOWS_WAITING = 1000
"""Windows that may wait in a queue to be closed; an exporter that is further behind gets no further windows."""


class WindowClosed(msgspec.Struct, frozen=True):
    """The last item of a window in a queue."""

    window: Window


class WindowDiscarded(msgspec.Struct, frozen=True):
    """A window that was closed is to be deleted."""

    index: int


Item = EventBatch | WindowClosed | WindowDiscarded


class ExporterWorker:
    """Feeds one exporter at its own speed, on a loop and thread of its own.

    An exporter that fails or blocks costs its own output only. `offer`, `close_window` and `discard_window` are called on the drain
    loop; accounts may be read from any thread, and always agree.
    """

    def __init__(
        self,
        exporter: Exporter,
        run: Run,
        max_bytes: int,
        now: Callable[[], int],
        outputs: Callable[[int], dict[str, OutputLedger]] = lambda _: {},
        drop_oldest: bool = False,
    ) -> None:
        """Args: the exporter; the run; limit of the queue in bytes; our clock; accounts of all exporters by window;
        whether a full queue drops what has waited longest, instead of what comes."""
        self.exporter = exporter
        self.name = readable(exporter.name)
        self.raised: ErrorLog[BaseException] = ErrorLog(contexts=True)
        self.is_journal = bool(getattr(exporter, "is_journal", False))
        self.items_queued = 0
        """Items put into the queue so far."""
        self._run = run
        self._max = max_bytes
        self._drop_oldest = drop_oldest
        self._now = now
        self._outputs = outputs
        self._queue: deque[Item] = deque()
        self._in_hand: EventBatch | None = None
        self._work = LoopCondition()
        self._progress = LoopCondition()
        self._lock = locks.reentrant()
        self._thread: LoopThread | None = None
        self._inside = ""
        """The exporter's method that was called last."""
        self._unreadable = bool(getattr(exporter, "whole_or_nothing", False))
        """Whether what was exported can be read only when the exporter has been closed."""
        self._closing = self._broken = self._idle = self._stuck = False
        self._late = ""
        """The method that had not returned when the deadline for closing came."""
        self._abandoned = ""
        """Why everything is dropped from now on; empty while the exporter gets events."""
        self._bytes = self._peak = self._batches = self._handled = self._busy = 0
        self._accounts = Accounts()
        self._kept: UnsentFiles | None = None
        self._cap_seen = self._written_before = 0
        self._counting = exporter if isinstance(exporter, Counting) else None
        self._settling = exporter if isinstance(exporter, SupportsDeferredAck) else None
        self._keeping = exporter if isinstance(exporter, SupportsUnsentFiles) else None
        self._batches_seen = (0, 0)
        self._windows_given = self._windows_closed = 0
        self._latest = -1
        """The latest window, whether it went to the exporter or not."""
        self._left_out: dict[int, None] = {}
        """The latest windows that did not go to the exporter."""
        self._windows_left_out = self._left_out_told = 0

    def start(self, enter: Callable[[], object] = lambda: None) -> None:
        """Starts the exporter's thread. Without one the exporter has failed, like one that cannot be opened.

        Args:
            enter: called there first; context variables that it sets are those of the exporter.
        """

        async def run() -> None:
            enter()
            await self.run()

        try:
            self._thread = LoopThread(f"stepscope {self.name}", run, self._fail)
        except RuntimeError as error:
            self._fail(error)

    # producer's side, on the pipeline's loop

    def offer(self, batch: EventBatch) -> None:
        """Queues a batch, or drops and counts it."""
        count = len(batch)
        with self._lock:
            self._accounts.offer(batch.window, count)
            if self._broken:
                self._accounts.drop(batch.window, "error", count)
            elif self._abandoned:
                self._accounts.drop(batch.window, self._abandoned, count)
            elif self._leaves_out(batch.window):
                self._accounts.drop(batch.window, "queue", count)
            else:
                self._admit(batch)
        self._work.notify_all()

    def _admit(self, batch: EventBatch) -> None:
        # The first one passes, however large it is.
        if self._queue and self._bytes + batch.nbytes > self._max:
            count = len(batch)
            batch = self._fit(batch)
            self._accounts.drop(batch.window, "queue", count - len(batch))
        if len(batch):
            self._bytes += batch.nbytes
            self._peak = max(self._peak, self._bytes)
            self._queue.append(batch)
            self.items_queued += 1
            self._idle = False

    def _fit(self, batch: EventBatch) -> EventBatch:
        """The first events of a batch, as many as there is room for, or room is made for."""
        if self._drop_oldest:
            self._make_room(self._bytes + batch.nbytes - self._max)
        events, args = cut_block(batch.events, batch.args, self._max - self._bytes)
        if len(events) == len(batch):
            return batch
        events.flags.writeable = False
        return msgspec.structs.replace(batch, events=events, args=args)

    def _make_room(self, need: int) -> None:
        """Drops the batches that have waited longest, until so many bytes are free."""
        ends: list[Item] = []
        while need > 0 and self._queue:
            item = self._queue.popleft()
            if isinstance(item, EventBatch):
                self._accounts.drop(item.window, "queue", len(item))
                self._bytes -= item.nbytes
                need -= item.nbytes
            else:
                ends.append(item)
        self._queue.extendleft(reversed(ends))

    def _leaves_out(self, window: int) -> bool:
        """Whether this window, which is the latest, does not go to the exporter: that is decided when it begins."""
        if window > self._latest:
            self._latest = window
            if self.windows_waiting >= WINDOWS_WAITING:
                self._left_out[window] = None
                self._windows_left_out += 1
                if len(self._left_out) > KEPT_WINDOWS:
                    oldest = next(iter(self._left_out))
                    del self._left_out[oldest]
                    self._accounts.forget(oldest)
        return window in self._left_out

    def close_window(self, window: Window) -> None:
        """Queues the end of a window; it fits if the window was given at all."""
        with self._lock:
            left_out = not self._abandoned and self._leaves_out(window.index)
        if left_out:
            self._progress.notify_all()
            return
        missed, self._left_out_told = self._windows_left_out - self._left_out_told, self._windows_left_out
        if missed:
            note = f"{missed:,} windows were not given to {self.name}: it was {WINDOWS_WAITING:,} windows behind"
            window = msgspec.structs.replace(window, diagnostics=(*window.diagnostics, note))
        self._windows_given += 1
        self._put(WindowClosed(window))

    def discard_window(self, index: int) -> None:
        """Queues the deletion of a window, for exporters that can do that."""
        if isinstance(self.exporter, SupportsDiscard) and index not in self._left_out:
            self._put(WindowDiscarded(index))

    def _put(self, item: WindowClosed | WindowDiscarded) -> None:
        with self._lock:
            if not self._abandoned:
                self._queue.append(item)
                self.items_queued += 1
                self._idle = False
        self._work.notify_all()

    @property
    def windows_waiting(self) -> int:
        """Windows that ended and that the exporter has not closed yet."""
        return self._windows_given - self._windows_closed

    def behind(self) -> bool:
        """Whether more than half of its queue waits while it gets on: what is not urgent is better held back."""
        now = self._now()
        full = self._bytes > self._max // 2
        if not full or self._batches != self._batches_seen[0]:
            self._batches_seen = (self._batches, now)
        return full and now - self._batches_seen[1] < PATIENCE * 1e9

    def half_full(self) -> bool:
        """Whether more than half of its queue waits, and it is worth waiting for."""
        return self._bytes > self._max // 2 and not self._stuck

    async def wait_below_half(self) -> None:
        """Waits while more than half of the queue is full and the exporter gets on with it.

        So a burst passes without a drop. One that makes no progress for `PATIENCE` seconds is not waited for again
        until it does: it must not hold up the others.
        """
        while self.half_full():
            handled = self._handled
            with anyio.move_on_after(PATIENCE) as waited:
                await self._progress.wait_for(lambda: self._handled != handled)  # noqa: B023
            self._stuck = waited.cancelled_caught

    def finish(self) -> None:
        """No more will be offered."""
        self._closing = True
        self._work.notify_all()
        exporter = self.exporter
        if self._thread is not None and isinstance(exporter, SupportsEarlyClose):
            self._thread.call(lambda: self._say_closing(exporter))

    def _say_closing(self, exporter: SupportsEarlyClose) -> None:
        try:
            exporter.closing()
        except BaseException as error:  # on its own loop, where no cancellation is thrown into a call
            self._keep("closing", error)

    async def drained(self) -> None:
        """Returns when the queue is empty and nothing is in the exporter's hands."""
        await self._progress.wait_for(lambda: self._idle or self._abandoned)

    async def window_closed(self, index: int) -> None:
        """Returns when the exporter has closed this window, or has tried to; from any loop."""
        await self._progress.wait_for(
            lambda: self._accounts.closed(index) or index in self._left_out or self._abandoned
        )

    @property
    def handled(self) -> int:
        """Items, of those given, that the exporter has written, or that were dropped and counted."""
        with self._lock:
            return self.items_queued - len(self._queue) - (self._in_hand is not None)

    @property
    def unreported_drops(self) -> int:
        """Events that were dropped, of windows whose end the exporter has not been given yet."""
        with self._lock:
            return self._accounts.unreported_drops

    @property
    def ended(self) -> bool:
        """Whether the thread has done its work; true if it was never started."""
        return self._thread is None or self._thread.ended

    def join(self, seconds: float) -> None:
        """Waits until nothing is left of a thread that has ended, `seconds` at most; not from a loop."""
        if self._thread is not None and self._thread.ended:
            self._thread.join(seconds)

    async def wait(self) -> None:
        """Returns when the thread has ended."""
        if self._thread is not None:
            await self._thread.change.wait_for(lambda: self.ended)

    def cancel(self) -> None:
        """The deadline has passed: the exporter is cancelled, and has `GRACE` seconds to close its output."""
        if self._thread is not None and not self.ended:
            self._late = self._inside or "aclose"
            self._thread.cancel()

    def abandon(self) -> None:
        """Nothing more is waited for: what the exporter has not written is dropped, and counted."""
        self._let_go("closed")
        said = self.statistics()
        if said.kept is not None:
            log.warning("output %s: %s%s", self.name, counted(said.ledger, said.kept), remedy(said.kept))
        elif self._late:
            fate = "cancelled" if self.ended else "left to itself, as it blocks its thread"
            self._keep(self._late, TimeoutError(f"it did not end by the deadline for closing, and was {fate}"))

    def _let_go(self, reason: str) -> None:
        with self._lock:
            self._abandoned = self._abandoned or reason
            for batch in (self._in_hand, *self._queue):
                if isinstance(batch, EventBatch):
                    self._accounts.drop(batch.window, reason, len(batch))
            self._accounts.drop_held(reason)
            if self._unreadable:
                self._accounts.lose_all(reason)
            self._queue.clear()
            self._in_hand, self._bytes = None, 0
        self._progress.notify_all()

    # consumer's side, on the exporter's loop

    async def run(self) -> None:
        """Opens the exporter, feeds it until `finish()` and the queue is empty, closes it."""
        try:
            if not await self._guard("open", lambda: self.exporter.open(self._run)):
                self._broken = True
            while True:
                closing = self._closing  # before the queue is looked at: nothing is offered after it is set
                item = self._next()
                if item is not None:
                    await self._handle(item)
                    self._stuck = False
                    self._handled += 1
                    self._progress.notify_all()
                elif closing:
                    break
                else:
                    await self._work.wait_for(lambda: self._queue or self._closing)
        except BaseException:
            with anyio.CancelScope(deadline=anyio.current_time() + GRACE, shield=True):
                await self._close()
            raise
        await self._close()

    def _fail(self, error: BaseException) -> None:
        """The exporter cannot be run (any more): no thread, no descriptor for its loop, or a fault of ours."""
        self._keep(self._inside or "run", error)
        self._let_go("error")

    async def _close(self) -> None:
        if not self._broken:
            try:
                done = await self._guard("aclose", self.exporter.aclose)
                with self._lock:
                    if not done and self._unreadable:
                        self._accounts.lose_all("error")
                    self._unreadable = False
            finally:
                self._settle()

    def _next(self) -> Item | None:
        """Takes an item off the queue; a batch stays accounted for as in hand."""
        with self._lock:
            item = self._queue.popleft() if self._queue else None
            if isinstance(item, EventBatch):
                self._in_hand = item
                self._bytes -= item.nbytes
            self._idle = item is None
        if item is None:
            self._progress.notify_all()
        return item

    async def _handle(self, item: Item) -> None:
        if isinstance(item, WindowDiscarded):
            exporter = self.exporter
            if not self._broken and isinstance(exporter, SupportsDiscard):
                await self._guard("discard_window", lambda: exporter.discard_window(item.index))
            return
        if isinstance(item, WindowClosed):
            if not self._broken:
                window = msgspec.structs.replace(item.window, ledger=self._with_own(item.window))
                await self._guard("close_window", lambda: self.exporter.close_window(window))
                self._settle()
            with self._lock:
                self._accounts.close(item.window.index)
            self._windows_closed += 1
            return
        if self._broken:
            self._account(item, "error")
            return
        self._batches += 1
        self._written_before = self._written()
        try:
            done = await self._guard("export", lambda: self.exporter.export(item))
        except BaseException:
            self._account(item, "closed")
            raise
        self._account(item, "" if done else "error")

    def _written(self) -> int:
        """Events that the exporter has in its files so far; 0 if it does not count them."""
        return 0 if self._counting is None else self._counting.written

    def _account(self, batch: EventBatch, lost: str) -> None:
        """What became of the batch in hand: it was exported, or as much of it as was not written is lost for a reason."""
        cap = getattr(self.exporter, "dropped_cap", 0)
        with self._lock:
            if self._in_hand is None:
                return  # abandoned meanwhile, and counted
            self._in_hand = None
            refused = min(cap - self._cap_seen, len(batch))
            self._cap_seen += refused
            self._accounts.drop(batch.window, "cap", refused)
            rest = len(batch) - refused
            if self._settling is not None and not self._broken:
                self._accounts.hold(batch.window, rest)
            else:
                done = min(self._written() - self._written_before, rest) if lost else rest
                self._accounts.export(batch.window, done)
                self._accounts.drop(batch.window, lost, rest - done)
        self._settle()

    def _settle(self) -> None:
        told = [] if self._settling is None else list(self._settling.settle())
        kept = None if self._keeping is None else self._keeping.kept
        gone = [] if self._counting is None else list(self._counting.take_lost())
        cap = 0 if self._settling is not None else getattr(self.exporter, "dropped_cap", 0)
        with self._lock:
            for settled in told:
                self._accounts.settle(settled)
            if cap > self._cap_seen:  # events written in part before the limit was met
                gone.append(Lost(cap - self._cap_seen, "cap"))
                self._cap_seen = cap
            for lost in gone:
                self._accounts.lose(lost)
            self._kept = None if self._abandoned else kept

    async def _guard(self, what: str, call: Callable[[], Awaitable[None]]) -> bool:
        """Awaits a call of the exporter; what it raises is kept. Only a cancellation from outside passes."""
        start = self._now()
        self._inside = what
        task = asyncio.current_task()
        try:
            await (run_async(call) if is_programs(self.exporter) else call())
        except BaseException as error:
            if cancels(error, task):
                raise
            self._keep(what, error)
            return False
        finally:
            self._busy += self._now() - start
        return True

    def _keep(self, what: str, error: BaseException) -> None:
        if what == self._late:
            self._late = ""  # it says itself what came of the deadline
        self.raised.record_and_log(what, error, f"exporter {self.name!r}")

    # accounts

    def keeps(self, window: int) -> bool:
        """Whether the accounts of this window are still kept apart from those of the run."""
        with self._lock:
            return self._accounts.keeps(window)

    def ledger(self, window: int) -> OutputLedger:
        """Accounts of one window; empty if they are not kept any more."""
        with self._lock:
            return self._accounts.ledger(window)

    def _with_own(self, window: Window) -> Ledger:
        outputs = self._outputs(window.index)
        if self.keeps(window.index):
            outputs = {**outputs, self.name: self.ledger(window.index)}
        return msgspec.structs.replace(window.ledger, outputs=outputs)

    def statistics(self) -> ExporterStatistics:
        """Accounts so far."""
        count, first = self.raised.count, self.raised.retained[:1]
        with self._lock:
            waiting = (self._in_hand, *self._queue)
            return ExporterStatistics(
                name=self.name,
                ledger=self._accounts.total(),
                batches=self._batches,
                waiting_batches=len(self._queue),
                waiting_events=sum(len(item) for item in waiting if isinstance(item, EventBatch)) + self._accounts.held,
                waiting_bytes=self._bytes,
                peak_bytes=self._peak,
                windows_left_out=self._windows_left_out,
                errors=count,
                first_error=first[0].text if first else "",
                busy_ns=self._busy,
                kept=self._kept,
            )

"""The worker of one exporter: its bounded queue, its thread and its accounts."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import islice, zip_longest
from typing import Any

import anyio
import msgspec
import numpy as np

from stepscope.runtime.accounting.error_log import ErrorLog
from stepscope.runtime.accounting.ledger import Ledger, OutputLedger
from stepscope.runtime.events import clock
from stepscope.runtime.events.record import EventBatch, cut_block, empty_block
from stepscope.runtime.export.exporter import (
    Counting,
    Exporter,
    Lost,
    SupportsCounts,
    SupportsDeferredAck,
    SupportsDiscard,
    SupportsEarlyClose,
    SupportsGroupedWrites,
    SupportsUnsentFiles,
    UnsentFiles,
)
from stepscope.runtime.export.exporter_accounts import MAX_WINDOWS, Accounts, ExporterStatistics, counted, remedy
from stepscope.runtime.export.run import Run
from stepscope.runtime.files.paths import readable
from stepscope.runtime.loop_threads.condition import LoopCondition
from stepscope.runtime.loop_threads.loop_thread import LoopThread
from stepscope.runtime.threads import locks
from stepscope.runtime.threads.user_code import CANCEL_TIMEOUT_S, cancels, is_programs, run_async
from stepscope.runtime.windows.window import Window

log = logging.getLogger("stepscope")

SLOW_EXPORTER_TIMEOUT_S = 0.25
"""Longest time that the loop waits for one batch of a slow exporter, in seconds."""

GROUP_ITEMS = 64
"""Most items in a group, whose small writes are put together."""

BATCH_BYTES = 64 << 10
"""Bytes of events after which no further item joins a group."""

WINDOWS_WAITING = 1000
"""Limit of windows that wait in a queue to be closed. Beyond that, the exporter gets no further windows."""


class WindowClosed(msgspec.Struct, frozen=True):
    """The last item of a window in a queue."""

    window: Window


class WindowDiscarded(msgspec.Struct, frozen=True):
    """Delete a closed window."""

    index: int


Item = EventBatch | WindowClosed | WindowDiscarded


_NO_EVENT = empty_block(1)


def _size(batch: EventBatch) -> int:
    """Bytes in the queue; 0 for a batch that has the number of its events only."""
    return batch.events.nbytes + len(batch.args) if batch.events.strides[0] else 0


class ExporterWorker:
    """Calls one exporter at its own speed, on its own thread and event loop.

    An exporter that fails or blocks loses its own output only. `offer`, `close_window` and `discard_window` are called on the drain
    loop. Any thread may read the accounts, which always agree.
    """

    def __init__(
        self,
        exporter: Exporter,
        run: Run,
        max_bytes: int,
        outputs: Callable[[int], dict[str, OutputLedger]] = lambda _: {},
        drop_oldest: bool = False,
    ) -> None:
        """Args: the exporter; the run; limit of the queue in bytes; accounts of all exporters by window; whether a full
        queue drops the oldest batches instead of new ones."""
        self.exporter = exporter
        self.name = readable(exporter.name)
        self.raised: ErrorLog[BaseException] = ErrorLog(contexts=True)
        self.is_journal = bool(getattr(exporter, "is_journal", False))
        self.items_queued = 0
        """Number of items queued so far."""
        self.progressed: Callable[[], object] = lambda: None
        """Called on the exporter's thread after it has handled some."""
        self._run = run
        self._max = max_bytes
        self._drop_oldest = drop_oldest
        self._outputs = outputs
        self._queue: deque[Item] = deque()
        self._batch: deque[Item] = deque()
        """Items that have left the queue, and that the exporter may not have written."""
        self._exported: list[int] = []
        """How many events of each item of the batch were exported, for those that the exporter has handled."""
        self._work = LoopCondition()
        self._progress = LoopCondition()
        self._lock = locks.reentrant()
        self._thread: LoopThread | None = None
        self._task: asyncio.Task[Any] | None = None
        """The task of `run`, which makes all calls of the exporter."""
        self._inside = ""
        """The method of the exporter that was called last."""
        self._calls: tuple[int, int | None] = (0, None)
        """Time in calls so far, and when the call in progress began; `None` between two calls."""
        self._unreadable = bool(getattr(exporter, "whole_or_nothing", False))
        """Whether the output can be read only after the exporter is closed."""
        self._closing = self._refused = self._idle = False
        self._late = ""
        """The method that was running at the deadline for closing."""
        self._abandoned = ""
        """Why all further events are dropped; empty while the exporter gets events."""
        self._bytes = self._peak = self._handled = 0
        self._active_ns = 0
        """Time at which a call began or ended, or at which an empty queue got an item between two calls."""
        self._accounts = Accounts()
        self._unsent_files: UnsentFiles | None = None
        self._cap_seen = 0
        self._written_before = 0
        """Events in the exporter's files before the current batch."""
        self._grouped = exporter if isinstance(exporter, SupportsGroupedWrites) else None
        self._in_group = False
        self._is_programs = is_programs(exporter)
        self._counts = exporter if isinstance(exporter, SupportsCounts) else None
        self._counting = exporter if isinstance(exporter, Counting) else None
        self._deferred = exporter if isinstance(exporter, SupportsDeferredAck) else None
        self._unsent = exporter if isinstance(exporter, SupportsUnsentFiles) else None
        self._reports = any(each is not None for each in (self._counting, self._deferred, self._unsent))
        """Whether the exporter reports results after its calls."""
        self._windows_queued = self._windows_closed = 0
        self._latest = -1
        """Index of the latest window, skipped or not."""
        self._skipped: dict[int, None] = {}
        """The latest skipped windows."""
        self._skipped_windows = 0

    def start(self, enter: Callable[[], object] = lambda: None) -> None:
        """Starts the exporter's thread, where `enter` is called first. If that fails, it counts as a failed `open`."""

        async def run() -> None:
            enter()
            await self.run()

        try:
            self._thread = LoopThread(f"stepscope {self.name}", run, self._fail)
        except RuntimeError as error:
            self._fail(error)

    # producer, on the pipeline's loop

    def offer(self, batch: EventBatch) -> None:
        """Queues a batch, or drops and counts it."""
        count, size = len(batch.events), batch.nbytes
        if self._counts is not None and not self._counts.needs_events:
            batch, size = msgspec.structs.replace(batch, events=np.broadcast_to(_NO_EVENT, count), args=b""), 0
        with self._lock:
            self._accounts.offer(batch.window, count)
            if self._abandoned:
                self._accounts.drop(batch.window, self._abandoned, count)
            elif (batch.window > self._latest or self._skipped) and self._skips(batch.window):
                self._accounts.drop(batch.window, "queue", count)
            elif not self._queue or self._bytes + size <= self._max:  # an empty queue accepts a batch of any size
                self._append(batch, size)
            else:
                fitting = self._fit(batch)
                self._accounts.drop(batch.window, "queue", count - len(fitting))
                if len(fitting):
                    self._append(fitting, _size(fitting))
        self._work.notify_all()

    def _append(self, item: Item, size: int = 0) -> None:
        if not self._queue and self._calls[1] is None:
            self._active_ns = clock.now()
        self._bytes += size
        self._peak = max(self._peak, self._bytes)
        self._queue.append(item)
        self.items_queued += 1
        self._idle = False

    def _fit(self, batch: EventBatch) -> EventBatch:
        """The first events of a batch that fit the queue. With `drop_oldest`, older batches are dropped before."""
        if self._drop_oldest:
            self._make_room(self._bytes + batch.nbytes - self._max)
        events, args = cut_block(batch.events, batch.args, self._max - self._bytes)
        if len(events) == len(batch):
            return batch
        events.flags.writeable = False
        return msgspec.structs.replace(batch, events=events, args=args)

    def _make_room(self, need: int) -> None:
        """Drops the oldest batches, until so many bytes are free."""
        ends: list[Item] = []
        while need > 0 and self._queue:
            item = self._queue.popleft()
            if isinstance(item, EventBatch):
                self._accounts.drop(item.window, "queue", len(item))
                self._bytes -= _size(item)
                need -= _size(item)
            else:
                ends.append(item)
        self._queue.extendleft(reversed(ends))

    def _skips(self, window: int) -> bool:
        """Whether this window is skipped. That is decided when it begins."""
        if window > self._latest:
            self._latest = window
            if self.windows_waiting >= WINDOWS_WAITING:
                self._skipped[window] = None
                self._skipped_windows += 1
                if len(self._skipped) > MAX_WINDOWS:
                    oldest = next(iter(self._skipped))
                    del self._skipped[oldest]
                    self._accounts.forget(oldest)
        return window in self._skipped

    def close_window(self, window: Window) -> None:
        """Queues the end of a window, unless the window is skipped."""
        with self._lock:
            if self._abandoned:
                self._accounts.close(window.index)
                return
            skipped = self._skips(window.index)
        if skipped:
            self._progress.notify_all()
            return
        self._windows_queued += 1
        self._put(WindowClosed(window))

    def discard_window(self, index: int) -> None:
        """Queues the deletion of a window, if the exporter supports it."""
        if isinstance(self.exporter, SupportsDiscard) and index not in self._skipped:
            self._put(WindowDiscarded(index))

    def _put(self, item: WindowClosed | WindowDiscarded) -> None:
        with self._lock:
            if not self._abandoned:
                self._append(item)
        self._work.notify_all()

    @property
    def windows_waiting(self) -> int:
        """Number of ended windows that the exporter has not closed yet."""
        return self._windows_queued - self._windows_closed

    def half_full(self) -> bool:
        """Whether more than half of its queue is full, and it makes progress."""
        return self._bytes > self._max // 2 and clock.now() - self._active_ns < SLOW_EXPORTER_TIMEOUT_S * 1e9

    async def wait_below_half(self) -> None:
        """Waits while more than half of the queue is full and the exporter makes progress, so that a burst loses no events."""
        while self.half_full():
            handled = self._handled
            with anyio.move_on_after(SLOW_EXPORTER_TIMEOUT_S):
                await self._progress.wait_for(lambda: self._handled != handled)  # noqa: B023

    def finish(self) -> None:
        """No further batches will be offered."""
        self._closing = True
        self._work.notify_all()
        exporter = self.exporter
        if self._thread is not None and isinstance(exporter, SupportsEarlyClose):
            self._thread.call(lambda: self._report_closing(exporter))

    def _report_closing(self, exporter: SupportsEarlyClose) -> None:
        try:
            exporter.closing()
        except BaseException as error:  # it is no coroutine, so no cancellation can be raised in it
            self._record_error("closing", error)

    async def drained(self) -> None:
        """Returns when the queue is empty and no call is running."""
        await self._progress.wait_for(lambda: self._idle or self._abandoned)

    async def window_closed(self, index: int) -> None:
        """Returns when the exporter has closed this window, or has failed to. Any loop may call."""
        await self._progress.wait_for(lambda: self._accounts.closed(index) or index in self._skipped or self._abandoned)

    @property
    def handled(self) -> int:
        """Number of queued items that the exporter has handled, or that were dropped and counted."""
        with self._lock:
            return self.items_queued - len(self._queue) - len(self._batch)

    @property
    def unreported_drops(self) -> int:
        """Number of dropped events of windows whose end the exporter did not get yet."""
        with self._lock:
            return self._accounts.unreported_drops

    @property
    def ended(self) -> bool:
        """Whether the thread has ended; true if it was never started."""
        return self._thread is None or self._thread.ended

    def join(self, seconds: float) -> None:
        """Joins a thread that has ended, waiting at most `seconds`. Must not be called on a loop."""
        if self._thread is not None and self._thread.ended:
            self._thread.join(seconds)

    async def wait(self) -> None:
        """Returns when the thread has ended."""
        if self._thread is not None:
            await self._thread.change.wait_for(lambda: self.ended)

    def cancel(self) -> None:
        """Cancels the exporter, as the deadline has passed. It has `CANCEL_TIMEOUT_S` seconds to close its output."""
        if self._thread is not None and not self.ended:
            self._late = self._inside or "aclose"
            self._thread.cancel()

    def abandon(self) -> None:
        """Drops and counts all events that the exporter has not written."""
        self._drop_all("closed")
        now = self.statistics()
        if now.unsent_files is not None:
            log.warning("output %s: %s%s", self.name, counted(now.ledger, now.unsent_files), remedy(now.unsent_files))
        elif self._late:
            fate = "cancelled" if self.ended else "left to itself, as it blocks its thread"
            self._record_error(self._late, TimeoutError(f"it did not end by the deadline for closing, and was {fate}"))

    def _drop_all(self, reason: str) -> None:
        with self._lock:
            self._abandoned = self._abandoned or reason
            for item, exported in zip_longest((*self._batch, *self._queue), self._exported):
                if isinstance(item, WindowClosed):
                    self._count_closed(item)
                elif isinstance(item, EventBatch) and exported is None:
                    self._accounts.drop(item.window, reason, len(item))
                elif isinstance(item, EventBatch):
                    self._accounts.lose(Lost(exported, reason, item.window))
            self._exported.clear()
            self._accounts.drop_in_flight(reason)
            if self._unreadable:
                self._accounts.lose_all(reason)
            self._queue.clear()
            self._batch.clear()
            self._bytes = 0
        self._progress.notify_all()

    # consumer, on the exporter's loop

    async def run(self) -> None:
        """Opens the exporter, handles items until `finish()` was called and the queue is empty, and closes it."""
        self._task = asyncio.current_task()
        try:
            if not await self._guard("open", self.exporter.open, self._run):
                self._refused = True
                self._drop_all("error")
            while True:
                closing = self._closing  # before the queue is read: no batch is offered after it is set
                if self._fill_batch():
                    await self._export_batches()
                    self._progress.notify_all()
                    self.progressed()
                elif closing:
                    break
                else:
                    await self._work.wait_for(lambda: self._queue or self._closing)
        except BaseException:
            with anyio.CancelScope(deadline=anyio.current_time() + CANCEL_TIMEOUT_S, shield=True):
                await self._close()
            raise
        await self._close()

    def _fail(self, error: BaseException) -> None:
        """The exporter cannot run: there is no thread, no descriptor for its loop, or an internal error."""
        self._record_error(self._inside or "run", error)
        self._drop_all("error")

    async def _close(self) -> None:
        if not self._refused:
            try:
                done = await self._guard("aclose", self.exporter.aclose)
                with self._lock:
                    if not done and self._unreadable:
                        self._accounts.lose_all("error")
                    self._unreadable = False
                    if done:
                        self._finish_batch()
            finally:
                self._collect_results()

    def _fill_batch(self) -> bool:
        """Moves the next item from the queue to `_batch`; for an exporter that groups writes, further ones too,
        up to `GROUP_ITEMS` and about `BATCH_BYTES`. Returns whether there was one."""
        with self._lock:
            most, size = 1 if self._grouped is None else GROUP_ITEMS, 0
            while self._queue and len(self._batch) < most and size < BATCH_BYTES:
                item = self._queue.popleft()
                self._batch.append(item)
                if isinstance(item, EventBatch):
                    size += _size(item)
            self._bytes -= size
            self._idle = not self._batch
        if self._idle:
            self._progress.notify_all()
        return not self._idle

    async def _export_batches(self) -> None:
        """Has the exporter handle the batch, as one group of writes if there are several."""
        group = self._grouped if len(self._batch) > 1 else None
        if group is not None:
            group.begin_group()
            self._in_group = True
        self._written_before = self._written()
        while (item := self._current()) is not None:
            await self._handle(item)
            self._handled += 1
        self._in_group = False
        if group is not None:
            await self._guard("export", group.end_group)
            self._collect_results()
            with self._lock:
                self._finish_batch()

    def _current(self) -> Item | None:
        """The next item of the batch; `None` once all are handled, or dropped at the deadline for closing."""
        with self._lock:
            return self._batch[len(self._exported)] if len(self._batch) > len(self._exported) else None

    def _finish_item(self, exported: int = 0) -> None:
        """Notes how many events of the current item were exported. The lock is held."""
        self._exported.append(exported)
        if not self._in_group:
            self._finish_batch()

    def _finish_batch(self) -> None:
        """The exporter has written the items that it has handled. The lock is held."""
        for _ in self._exported:
            item = self._batch.popleft()
            if isinstance(item, WindowClosed):
                self._count_closed(item)
        self._exported.clear()

    def _count_closed(self, item: WindowClosed) -> None:
        self._accounts.close(item.window.index)
        self._windows_closed += 1

    async def _handle(self, item: Item) -> None:
        if isinstance(item, EventBatch):
            await self._export(item)
        elif isinstance(item, WindowClosed):
            await self._close_window(item)
        else:
            if isinstance(self.exporter, SupportsDiscard):
                await self._guard("discard_window", self.exporter.discard_window, item.index)
            with self._lock:
                if self._batch:
                    self._finish_item()

    async def _close_window(self, item: WindowClosed) -> None:
        window = msgspec.structs.replace(item.window, ledger=self._with_own(item.window))
        done = await self._guard("close_window", self.exporter.close_window, window)
        if not (done and self._in_group and self._cap() == self._cap_seen):
            self._collect_results()
        with self._lock:
            if self._batch:  # else abandoned meanwhile, and counted
                self._finish_item()

    async def _export(self, batch: EventBatch) -> None:
        try:
            done = await self._guard("export", self.exporter.export, batch)
        except BaseException:
            self._account(batch, "closed")
            raise
        self._account(batch, "" if done else "error")

    def _written(self) -> int:
        """Number of events in the exporter's files so far; 0 if it does not count them."""
        return 0 if self._counting is None else self._counting.written

    def _account(self, batch: EventBatch, lost: str) -> None:
        """Counts the current batch as exported; with a reason in `lost`, the events that were not written as dropped."""
        cap = self._cap()
        count = len(batch)
        with self._lock:
            if not self._batch:
                return  # abandoned meanwhile, and counted
            refused = min(cap - self._cap_seen, count)
            self._cap_seen += refused
            rest = count - refused
            if refused:
                self._accounts.drop(batch.window, "cap", refused)
            if self._deferred is not None:
                self._accounts.add_in_flight(batch.window, rest)
                self._finish_item()
            elif not lost:
                self._accounts.export(batch.window, rest)
                self._written_before += rest
                self._finish_item(rest)
            else:
                written = self._written()
                done = min(written - self._written_before, rest)
                self._written_before = written
                self._accounts.export(batch.window, done)
                self._accounts.drop(batch.window, lost, rest - done)
                self._finish_item(done)
        if lost or not self._in_group or cap > self._cap_seen:
            self._collect_results()

    def _cap(self) -> int:
        """Number of events that the exporter has refused, as it had reached its size limit."""
        cap: int = getattr(self.exporter, "dropped_cap", 0)
        return cap

    def _collect_results(self) -> None:
        """Counts what the exporter reports after a call, and events that it has refused."""
        cap = self._cap()
        if cap == self._cap_seen and not self._reports:
            return
        results = [] if self._deferred is None else list(self._deferred.delivery_results())
        unsent = None if self._unsent is None else self._unsent.unsent_files
        losses = [] if self._counting is None else list(self._counting.take_lost())
        cap = 0 if self._deferred is not None else cap
        with self._lock:
            for result in results:
                self._accounts.resolve(result)
            if cap > self._cap_seen:  # a part of these events was written before the limit was reached
                losses.append(Lost(cap - self._cap_seen, "cap"))
                self._cap_seen = cap
            for lost in losses:
                self._accounts.lose(lost)
            self._unsent_files = None if self._abandoned else unsent

    async def _guard(self, what: str, method: Callable[..., Awaitable[None]], *args: Any) -> bool:
        """Awaits a call of the exporter, and stores its exception. Only a cancellation of this task propagates."""
        self._inside = what
        busy, began = self._calls[0], clock.now()
        self._active_ns = began
        self._calls = busy, began
        try:
            await (run_async(partial(method, *args)) if self._is_programs else method(*args))
        except BaseException as error:
            if cancels(error, self._task):
                raise
            self._record_error(what, error)
            return False
        finally:
            self._active_ns = clock.now()
            self._calls = busy + self._active_ns - began, None
        return True

    def _record_error(self, what: str, error: BaseException) -> None:
        if what == self._late:
            self._late = ""  # this error reports the deadline
        self.raised.record_and_log(what, error, f"exporter {self.name!r}")

    # accounts

    def ledger(self, window: int) -> OutputLedger | None:
        """Accounts of one window; `None` for one that is part of the sum of old windows."""
        with self._lock:
            return self._accounts.ledger(window)

    def _with_own(self, window: Window) -> Ledger:
        outputs = self._outputs(window.index)
        own = self.ledger(window.index) if self.name not in outputs else None
        if own is not None:
            outputs = {**outputs, self.name: own}
        return msgspec.structs.replace(window.ledger, outputs=outputs)

    def statistics(self) -> ExporterStatistics:
        count, first = self.raised.count, self.raised.retained[:1]
        busy, began = self._calls
        with self._lock:
            waiting = (*islice(self._batch, len(self._exported), None), *self._queue)
            return ExporterStatistics(
                name=self.name,
                ledger=self._accounts.total(),
                waiting_events=sum(len(item) for item in waiting if isinstance(item, EventBatch))
                + self._accounts.in_flight,
                waiting_bytes=self._bytes,
                peak_bytes=self._peak,
                windows_left_out=self._skipped_windows,
                errors=count,
                first_error=first[0].text if first else "",
                busy_ns=busy if began is None else busy + clock.now() - began,  # one that hangs never ends
                unsent_files=self._unsent_files,
            )

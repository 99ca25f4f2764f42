"""A source: one backend, its sink and its errors."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Protocol, cast

import anyio

from stepscope.runtime.accounting.error_log import ErrorLog
from stepscope.runtime.errors import ClosedError
from stepscope.runtime.events import clock
from stepscope.runtime.events.record import Block, EventBatch, check_block, cut_block
from stepscope.runtime.files.paths import readable
from stepscope.runtime.inbox.inbox import Inbox
from stepscope.runtime.inbox.messages import (
    Advancing,
    Delivery,
    Dropped,
    Message,
    Missing,
    SourceEnded,
    Spawn,
    Watermark,
)
from stepscope.runtime.options import Options
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.schedule.detail import Detail
from stepscope.runtime.settings.arguments import got
from stepscope.runtime.settings.numbers import whole
from stepscope.runtime.sources.backend_worker import BackendWorker
from stepscope.runtime.sources.sink import BackendReport, Sink
from stepscope.runtime.threads.one_shot import OneShot
from stepscope.runtime.threads.user_code import contain, from_signal_handler, is_programs, run, run_async

log = logging.getLogger("stepscope")

LOOP_BLOCKED_S = 0.5
"""Seconds in one call of `derive`, from which on a backend is reported to block the runtime's loop."""


class Producer(Protocol):
    """What a source drives; `backends/base.py` has the contract."""

    name: str
    thread_bound: bool

    def open(self, sink: Sink) -> None: ...
    def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None: ...
    async def aclose(self) -> None: ...
    def report(self) -> BackendReport: ...


class InboxSink:
    """The sink that a backend is given: it puts into the profiler's inbox, and refuses what the loop could not handle."""

    def __init__(self, source: str, inbox: Inbox[Message], options: Options) -> None:
        self._source = source
        self._inbox = inbox
        self._max = options.inbox_bytes

    def deliver(
        self,
        events: Block,
        args: bytes = b"",
        *,
        watermark: int | None = None,
        launched_before: int | None = None,
    ) -> int:
        check_block(events, self._source)
        if not isinstance(args, bytes):
            raise TypeError(f"the arguments of a block of {self._source!r} must be bytes, {got(args)}")
        until = None if watermark is None else self._time("watermark", watermark)
        launched = None if launched_before is None else self._time("launched_before", launched_before)
        kept, heap = cut_block(events, args, self._max - self._inbox.waiting_bytes)
        # It may still not fit: other threads put into the same inbox.
        delivery = Delivery(self._source, kept, heap, launched)
        if len(kept) and not self._inbox.put(delivery, delivery.nbytes):
            kept = kept[:0]
        lost = len(events) - len(kept)
        if lost:
            self.dropped(lost, "inbox", int(events["ts"][0]))
        if until is not None:
            self.watermark(until)
        return len(kept)

    def watermark(self, at: int) -> None:
        self._inbox.put(Watermark(self._source, self._time("watermark", at)), later=True)

    def dropped(self, count: int, reason: str, at: int) -> None:
        lost = whole(count, f"what {self._source!r} has dropped", least=0)
        if not isinstance(reason, str):
            raise TypeError(f"the reason why {self._source!r} has dropped events must be a str, {got(reason)}")
        self._inbox.put(Dropped(self._source, reason, lost, self._time("dropped", at)), later=True)

    def missing(self, start: int, end: int, why: str) -> None:
        if not isinstance(why, str):
            raise TypeError(f"the reason why events of {self._source!r} are missing must be a str, {got(why)}")
        self._inbox.put(Missing(self._source, why, self._time("missing", start), self._time("missing", end)))

    def advancing(self) -> None:
        self._inbox.put(Advancing(self._source))

    def run_soon(self, work: object) -> None:
        if not callable(work):
            raise TypeError(f"run_soon takes a coroutine function without arguments, {got(work)}")
        self._inbox.put(Spawn(self._source, cast(Callable[[], Awaitable[None]], work)))

    def _time(self, what: str, at: object) -> int:
        return whole(at, f"the time in ns that {self._source!r} gives {what}()")


class Source:
    """Calls one backend and keeps what it raises: a backend that fails or blocks costs its own events only.

    The backend has a thread of its own. `start`, `transition` and `set_detail` call it where they are called: there, by `call`, or
    on the program's thread if it is bound to that. `derive` and `report` may be called meanwhile on any thread.

    What ends the caller passes: what a handler of the program, of a signal, raises in a call on the main thread, and the
    cancellation of who awaits `aclose`.
    """

    def __init__(self, backend: Producer, inbox: Inbox[Message], options: Options, enter: Callable[[], object]) -> None:
        """
        Args:
            enter: called on the backend's thread before each call; context variables that it sets are those of the backend.
        """
        self.backend = backend
        self.name = readable(backend.name)
        self.raised: ErrorLog[BaseException] = ErrorLog()
        self.open = False
        self._closing: anyio.CancelScope | None = None
        self._blocked = 0
        """The longest time, in ns, for which `derive` blocked the runtime's loop; only if that is reported."""
        self._opened: OneShot[None] = OneShot()
        self._worker = BackendWorker(self.name, enter, self._lost)
        self._programs = is_programs(backend)
        self._inbox = inbox
        self._told_of: tuple[ProfilerAction, int] | None = None
        """The latest change, and when it was: who was interrupted when it told of that tells again."""
        self._sink = InboxSink(backend.name, inbox, options)
        self._derive: Callable[[EventBatch], Block | None] | None = getattr(backend, "derive", None)
        self._set_detail: Callable[[Detail], None] | None = getattr(backend, "set_detail", None)
        self._choose: Callable[[Mapping[str, bool]], None] | None = getattr(backend, "choose", None)

    @property
    def expected(self) -> bool:
        """Whether windows may wait for it."""
        return self.open

    @property
    def tunable(self) -> bool:
        """Whether the backend is to be told of changes of detail."""
        return self._set_detail is not None or self._choose is not None

    @property
    def waiting(self) -> int:
        """Calls that wait for the backend's thread; from any thread."""
        return self._worker.waiting

    def call(self, what: Callable[[], object]) -> None:
        """Calls a function on the thread of a backend that is open, when that has returned from what came before."""
        if self.open:
            self._worker.call(what)

    def join(self, seconds: float) -> None:
        """Waits for the end of the thread of a backend that is closed, `seconds` at most; not from a loop."""
        self._worker.join(seconds)

    def open_on_thread(self, opened: OneShot[None]) -> None:
        """Has the backend opened on its thread, if it is not open, and sets `opened` then."""
        self._opened = opened

        def open_() -> None:
            if not self.open:
                self.start()
            opened.set_result(None)

        if not self._worker.call(open_):
            opened.set_result(None)

    def start(self) -> None:
        """Opens the backend."""
        self.open = self._guard("open", lambda: self.backend.open(self._sink))

    def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        """Tells the backend of a change, once; one that could not be opened is left alone."""
        if self.open and self._told_of != (after, at):
            self._guard("transition", lambda: self.backend.transition(before, after, at))
            self._told_of = after, at

    def set_detail(self, detail: Detail) -> None:
        """Tells the backend how much to record from now on, if it can do less or more than it was asked for."""
        set_detail, choose = self._set_detail, self._choose
        if self.open and set_detail is not None:
            self._guard("set_detail", lambda: set_detail(detail))
        if self.open and choose is not None:
            self._guard("choose", lambda: choose(dict(detail.chosen)))

    def derive(self, batch: EventBatch) -> Block | None:
        """What the backend makes of a batch of the recorder, such as links between its events. Called on the drain loop: it is a
        function of the batch and nothing else."""
        block: Block | None = None
        derive = self._derive
        if derive is None:
            return None

        def call() -> None:
            nonlocal block
            made = derive(batch)
            if made is not None:
                check_block(made, self.name)
            block = made

        began = clock.now()
        self._guard("derive", call)
        took = clock.now() - began
        if took >= LOOP_BLOCKED_S * 1e9:
            known, self._blocked = self._blocked, max(took, self._blocked)
            if not known:
                log.warning("%s", self.blocked_notes[0])
        return block

    async def aclose(self, deadline: float) -> None:
        """Has the backend closed on its thread. One that has not ended by `deadline` (the loop's clock) is cancelled, and has
        failed; one that blocks its thread is left to itself."""
        if not self.open and self._worker.closed:
            return
        began = anyio.current_time()
        with anyio.CancelScope(deadline=deadline) as self._closing:
            await self._worker.close(self._close)
        if self._closing.cancelled_caught:
            seconds = self._closing.deadline - began
            blocked = await self._worker.cancel()
            fate = f"is left to itself, as it blocks its thread in {blocked}" if blocked else "was cancelled"
            late = f"it did not end within {seconds:.1f} s, and {fate}: events that it had yet to deliver are missing; raise"
            self._take("aclose", TimeoutError(f"{late} Options.close_timeout"))

    async def _close(self) -> None:
        if not self.open:
            return
        try:
            await self._contain(self.backend.aclose, "aclose")
        finally:
            self.open = False  # not before: until then what it delivers is waited for

    def wait_on(self, until: float) -> None:
        """The backend, if it closes, has time until then (the loop's clock)."""
        if self._closing is not None:
            self._closing.deadline = max(self._closing.deadline, until)

    def spawn(self, work: Callable[[], Awaitable[None]]) -> None:
        """Runs a coroutine function of the backend on its thread. If it fails, no window waits for the backend any longer."""

        async def run_work() -> None:
            if not await self._contain(work, "run_soon"):
                with contextlib.suppress(ClosedError):  # the profiler has ended, and waits for nobody
                    self._inbox.put(SourceEnded(self.name))

        self._worker.spawn(run_work)

    def _lost(self, error: BaseException) -> None:
        """There is no thread, or no loop, to call the backend on."""
        self._take("run" if self.open else "open", error)
        self.open = False
        self._opened.set_result(None)

    async def _contain(self, call: Callable[[], Awaitable[None]], what: str) -> bool:
        return await contain(partial(run_async, call) if self._programs else call, partial(self._take, what))

    def _guard(self, what: str, call: Callable[[], None]) -> bool:
        try:
            run(call) if self._programs else call()
        except BaseException as error:
            if not self.raised.retains(error) and from_signal_handler(error):
                raise
            self._take(what, error)
            return False
        return True

    @property
    def blocked_notes(self) -> tuple[str, ...]:
        """Says that the backend blocked the runtime's loop, if it did; from any thread."""
        if not self._blocked:
            return ()
        return (
            f"backend {self.name!r} blocked the runtime's loop for {self._blocked / 1e9:.1f} s in derive(): no profiler of this "
            "process was drained, flushed or closed in that time; derive less, or deliver it later from a thread",
        )

    def _take(self, what: str, error: BaseException) -> None:
        # Whatever it had for a profiler that has ended, nobody wants any more.
        if not (isinstance(error, ClosedError) and self._inbox.closed and what != "report"):
            self.raised.record_and_log(what, error, f"backend {self.name!r}")

    def keep(self, what: str, error: BaseException) -> None:
        """Stores what the backend could not do."""
        self.raised.record(what, error, f"backend {self.name!r}")

    def report(self) -> BackendReport:
        """What the backend says of itself, and of what it raised."""
        report = BackendReport()

        def call() -> None:
            nonlocal report
            report = self.backend.report()

        self._guard("report", call)
        notes = (*self.blocked_notes, *(retained.text for retained in self.raised.retained[:3]))
        if not notes:
            return report
        return BackendReport(
            mode=report.mode,
            clock=report.clock,
            training_thread_ns=report.training_thread_ns,
            notes=(*report.notes, *notes),
        )

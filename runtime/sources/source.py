"""A source: one backend, its sink and its errors."""

from __future__ import annotations

import contextlib
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
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.schedule.detail import Detail
from stepscope.runtime.settings.arguments import got, whole
from stepscope.runtime.sources.backend_worker import BackendWorker
from stepscope.runtime.sources.sink import BackendReport, Sink
from stepscope.runtime.threads.one_shot import OneShot
from stepscope.runtime.threads.user_code import contain, from_signal_handler, is_programs, run, run_async

LOSING = {"transition", "aclose", "run_soon", "run"}
"""Calls of a backend that lose events if they fail."""


class Producer(Protocol):
    """A backend; `backends/base.py` has the contract."""

    name: str
    thread_bound: bool

    def open(self, sink: Sink) -> None: ...
    def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None: ...
    async def aclose(self) -> None: ...
    def report(self) -> BackendReport: ...


class InboxSink:
    """The sink of a backend: it checks calls, and puts messages into the profiler's inbox."""

    def __init__(self, source: str, inbox: Inbox[Message]) -> None:
        self._source = source
        self._inbox = inbox
        self.accounted_to = 0
        """The latest time up to which the backend has delivered its events, or reported them as missing."""

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
        accepted, heap = cut_block(events, args, self._inbox.room)
        # It may still not fit, as other threads put into the same inbox.
        delivery = Delivery(self._source, accepted, heap, launched)
        if len(accepted) and not self._inbox.put(delivery, delivery.nbytes):
            accepted = accepted[:0]
        lost = len(events) - len(accepted)
        if lost:
            self.dropped(lost, "inbox", int(events["ts"][0]))
        if until is not None:
            self.watermark(until)
        return len(accepted)

    def watermark(self, at: int) -> None:
        until = self._time("watermark", at)
        self._inbox.put(Watermark(self._source, until), later=True)
        self.accounted_to = max(self.accounted_to, until)

    def dropped(self, count: int, reason: str, at: int) -> None:
        lost = whole(count, f"what {self._source!r} has dropped", least=0)
        if not isinstance(reason, str):
            raise TypeError(f"the reason why {self._source!r} has dropped events must be a str, {got(reason)}")
        self._inbox.put(Dropped(self._source, reason, lost, self._time("dropped", at)), later=True)

    def missing(self, start: int, end: int, why: str) -> None:
        if not isinstance(why, str):
            raise TypeError(f"the reason why events of {self._source!r} are missing must be a str, {got(why)}")
        until = self._time("missing", end)
        self._inbox.put(Missing(self._source, why, self._time("missing", start), until))
        self.accounted_to = max(self.accounted_to, until)

    def advancing(self) -> None:
        self._inbox.put(Advancing(self._source))

    def run_soon(self, work: object) -> None:
        if not callable(work):
            raise TypeError(f"run_soon takes a coroutine function without arguments, {got(work)}")
        self._inbox.put(Spawn(self._source, cast(Callable[[], Awaitable[None]], work)))

    def _time(self, what: str, at: object) -> int:
        return whole(at, f"the time in ns that {self._source!r} gives {what}()")


class Source:
    """Calls one backend and stores its errors: a backend that fails or blocks loses its own events only.

    The backend has its own thread. `start`, `transition` and `set_detail` call it on the current thread: the backend's own, by
    `call`, or the program's if it is thread-bound. Any thread may call `derive` and `report` meanwhile.

    Exceptions of the program's signal handlers propagate, and so does the cancellation of `aclose`.
    """

    def __init__(self, backend: Producer, inbox: Inbox[Message], enter: Callable[[], object]) -> None:
        """
        Args:
            enter: called on the backend's thread before each call, to set the context variables of the backend.
        """
        self.backend = backend
        self.name = readable(backend.name)
        self.raised: ErrorLog[BaseException] = ErrorLog()
        self.open = False
        self._closing: anyio.CancelScope | None = None
        self._opened: OneShot[None] = OneShot()
        self._worker = BackendWorker(self.name, enter, self._thread_failed)
        self._programs = is_programs(backend)
        self._inbox = inbox
        self._last_change: tuple[ProfilerAction, int] | None = None
        """The latest change, with its time: the caller repeats a change that a signal handler interrupted."""
        self._recorded: tuple[int, int | None] = 0, 0
        """The time of which it may have events to deliver, without end while it records."""
        self._failed = ""
        """The call that failed, since when its events are missing."""
        self._sink = InboxSink(backend.name, inbox)
        self._derive: Callable[[EventBatch], Block | None] | None = getattr(backend, "derive", None)
        self._set_detail: Callable[[Detail], None] | None = getattr(backend, "set_detail", None)
        self._choose: Callable[[Mapping[str, bool]], None] | None = getattr(backend, "choose", None)

    @property
    def expected(self) -> bool:
        """Whether windows may wait for it."""
        return self.open

    @property
    def tunable(self) -> bool:
        """Whether the backend follows changes of detail."""
        return self._set_detail is not None or self._choose is not None

    @property
    def waiting(self) -> int:
        """Number of calls that wait for the backend's thread. Any thread may read it."""
        return self._worker.waiting

    def call(self, what: Callable[[], object]) -> None:
        """Calls a function on the thread of an open backend, after previous calls."""
        if self.open:
            self._worker.call(what)

    def join(self, seconds: float) -> None:
        """Waits for the end of the thread of a closed backend, at most `seconds`. Must not be called on a loop."""
        self._worker.join(seconds)

    def open_on_thread(self, opened: OneShot[None]) -> None:
        """Opens the backend on its thread, if it is not open, and sets `opened` afterwards."""
        self._opened = opened

        def open_() -> None:
            if not self.open:
                self.start()
            opened.set_result(None)

        if not self._worker.call(open_):
            opened.set_result(None)

    def start(self) -> None:
        self.open = self._guard("open", lambda: self.backend.open(self._sink))

    def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        """Reports a change to the backend, once, if it is open."""
        if self.open and self._last_change != (after, at):
            self._count_missing(at)
            self._guard("transition", lambda: self.backend.transition(before, after, at))
            self._last_change = after, at
            since, until = self._recorded
            if after.records and until is not None:
                self._recorded = at if self._sink.accounted_to >= until else since, None
            elif before.records and not after.records:
                self._recorded = since, at

    def _count_missing(self, now: int) -> None:
        """After a failure, counts what it recorded up to now and has not delivered."""
        since, until = self._recorded
        start, end = max(since, self._sink.accounted_to), now if until is None else until
        if self._failed and start < end:
            with contextlib.suppress(ClosedError):  # the profiler has ended, and writes no further accounts
                self._sink.missing(start, end, f"not all of it, as {self._failed}() failed")
        self._failed = ""

    def set_detail(self, detail: Detail) -> None:
        """Reports a change of detail to the backend, if it follows them."""
        set_detail, choose = self._set_detail, self._choose
        if self.open and set_detail is not None:
            self._guard("set_detail", lambda: set_detail(detail))
        if self.open and choose is not None:
            self._guard("choose", lambda: choose(dict(detail.chosen)))

    def derive(self, batch: EventBatch) -> Block | None:
        """Events that the backend derives from a batch of the recorder, such as links between its events. Called on the drain loop.
        The result must depend on the batch only."""
        block: Block | None = None
        derive = self._derive
        if derive is None:
            return None

        def call() -> None:
            nonlocal block
            derived = derive(batch)
            if derived is not None:
                check_block(derived, self.name)
            block = derived

        self._guard("derive", call)
        return block

    async def aclose(self, deadline: float) -> None:
        """Closes the backend on its thread. If that has not ended by `deadline` (the loop's clock), it is cancelled, which counts as
        an error. If the backend blocks its thread, the thread is abandoned."""
        if not self.open and self._worker.closed:
            return
        began, now = anyio.current_time(), clock.now()
        with anyio.CancelScope(deadline=deadline) as self._closing:
            await self._worker.close(self._close)
        if self._closing.cancelled_caught:
            seconds = self._closing.deadline - began
            blocked = await self._worker.cancel()
            fate = f"is left to itself, as it blocks its thread in {blocked}" if blocked else "was cancelled"
            late = f"it did not end within {seconds:.1f} s, and {fate}: events that it had yet to deliver are missing; raise"
            self._record_error("aclose", TimeoutError(f"{late} Options.close_timeout"))
        self._count_missing(now)

    async def _close(self) -> None:
        if not self.open:
            return
        try:
            await self._contain(self.backend.aclose, "aclose")
        finally:
            self.open = False  # not before, as windows wait for its last deliveries

    def extend_deadline(self, until: float) -> None:
        """If the backend is closing, moves its deadline to `until` (the loop's clock), if that is later."""
        if self._closing is not None:
            self._closing.deadline = max(self._closing.deadline, until)

    def spawn(self, work: Callable[[], Awaitable[None]]) -> None:
        """Runs a coroutine function of the backend on its thread. If it fails, windows no longer wait for the backend."""

        async def run_work() -> None:
            if not await self._contain(work, "run_soon"):
                self._count_missing(clock.now())
                with contextlib.suppress(ClosedError):  # the profiler has ended, and does not wait
                    self._inbox.put(SourceEnded(self.name))

        self._worker.spawn(run_work)

    def _thread_failed(self, error: BaseException) -> None:
        """The backend's thread or its loop cannot start."""
        self._record_error("run" if self.open else "open", error)
        self.open = False
        self._opened.set_result(None)

    async def _contain(self, call: Callable[[], Awaitable[None]], what: str) -> bool:
        return await contain(partial(run_async, call) if self._programs else call, partial(self._record_error, what))

    def _guard(self, what: str, call: Callable[[], None]) -> bool:
        try:
            run(call) if self._programs else call()
        except BaseException as error:
            if not self.raised.retains(error) and from_signal_handler(error):
                raise
            self._record_error(what, error)
            return False
        return True

    def _record_error(self, what: str, error: BaseException) -> None:
        # A delivery to a profiler that has ended is no error.
        if not (isinstance(error, ClosedError) and self._inbox.closed and what != "report"):
            self.raised.record_and_log(what, error, f"backend {self.name!r}")
            self._failed = what if what in LOSING else self._failed

    def record(self, what: str, error: BaseException) -> None:
        """Stores an error without logging it."""
        self.raised.record(what, error, f"backend {self.name!r}")

    def report(self) -> BackendReport:
        """The backend's report, with notes on its errors."""
        report = BackendReport()

        def call() -> None:
            nonlocal report
            report = self.backend.report()

        self._guard("report", call)
        notes = tuple(retained.text for retained in self.raised.retained[:3])
        if not notes:
            return report
        return BackendReport(
            mode=report.mode,
            clock=report.clock,
            training_thread_ns=report.training_thread_ns,
            notes=(*report.notes, *notes),
        )

"""A source: one backend, its sink and its errors."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Protocol, cast

import anyio

from stepscope.runtime.accounting.error_log import ErrorLog
from stepscope.runtime.errors import ClosedError
from stepscope.runtime.events import clock
from stepscope.runtime.events.numbers import whole
from stepscope.runtime.events.record import Block, EventBatch, check_block, cut_block
from stepscope.runtime.files.paths import readable
from stepscope.runtime.loop.inbox import Inbox
from stepscope.runtime.loop.messages import Advancing, Delivery, Dropped, Message, Missing, Spawn, Watermark
from stepscope.runtime.options import Options
from stepscope.runtime.recording.detail import Detail
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.settings.arguments import got
from stepscope.runtime.sources.sink import BackendReport, Sink
from stepscope.runtime.threads.user_code import contain, from_signal_handler, is_programs, run, run_async

log = logging.getLogger("stepscope")

LOOP_BLOCKED_S = 0.5
"""Seconds in one call on the runtime's loop, from which on a backend is reported to block it."""


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
    """Calls one backend and keeps what it raises: a backend that fails costs its own events only.

    What ends the caller passes: what a handler of the program, of a signal, raises in a call on the main thread, and the
    cancellation of who awaits `aclose` or `run`.
    """

    def __init__(self, backend: Producer, inbox: Inbox[Message], options: Options) -> None:
        self.backend = backend
        self.name = readable(backend.name)
        self.raised: ErrorLog[BaseException] = ErrorLog()
        self.open = False
        self._closing: anyio.CancelScope | None = None
        self._blocked: dict[str, int] = {}
        """The longest time, in ns, for which a call blocked the runtime's loop, by method; only those that are reported."""
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
        """What the backend makes of a batch of the recorder, such as links between its events."""
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

        self._guard("derive", call)
        return block

    async def aclose(self, deadline: float) -> None:
        """Closes the backend. One that has not ended by `deadline` (the loop's clock) is cancelled, and has failed."""
        if not self.open:
            return
        began = anyio.current_time()
        with anyio.CancelScope(deadline=deadline) as self._closing:
            try:
                await self._contain(self.backend.aclose, "aclose")
            finally:
                self.open = False  # not before: until then what it delivers is waited for
        if self._closing.cancelled_caught:
            seconds = self._closing.deadline - began
            late = f"it did not end within {seconds:.1f} s, and was cancelled: events that it had yet to deliver are missing; raise"
            self._take("aclose", TimeoutError(f"{late} Options.close_timeout"))

    def wait_on(self, until: float) -> None:
        """The backend, if it closes, has time until then (the loop's clock)."""
        if self._closing is not None:
            self._closing.deadline = max(self._closing.deadline, until)

    async def run(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Runs a coroutine function of the backend; returns whether it came to its end."""
        return await self._contain(work, "run_soon")

    async def _contain(self, call: Callable[[], Awaitable[None]], what: str) -> bool:
        return await contain(partial(run_async, call) if self._programs else call, partial(self._take, what))

    def _guard(self, what: str, call: Callable[[], None]) -> bool:
        began = clock.now()
        try:
            run(call) if self._programs else call()
        except BaseException as error:
            if not self.raised.retains(error) and from_signal_handler(error):
                raise
            self._take(what, error)
            return False
        finally:
            took = clock.now() - began
            if took >= LOOP_BLOCKED_S * 1e9 and self._is_on_loop(what):
                self._note_blocked(what, took)
        return True

    def _is_on_loop(self, what: str) -> bool:
        """Whether this method of the backend is called on the runtime's loop."""
        return what == "derive" or (what != "report" and not self.backend.thread_bound)

    def _note_blocked(self, what: str, took: int) -> None:
        known = self._blocked
        self._blocked = {**known, what: max(took, known.get(what, 0))}
        if not known:
            log.warning("%s", self.blocked_notes[0])

    @property
    def blocked_notes(self) -> tuple[str, ...]:
        """A sentence for each method of the backend that blocked the runtime's loop; from any thread."""
        return tuple(
            f"backend {self.name!r} blocked the runtime's loop for {took / 1e9:.1f} s in {what}(): no profiler of this process "
            "was drained, flushed or closed in that time; do what takes long on a thread"
            for what, took in self._blocked.items()
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

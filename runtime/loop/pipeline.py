"""The pipeline of one profiler, on the loop: inbox, windows, fanout, running tables."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.abc

from stepscope.runtime import _core
from stepscope.runtime.accounting.error_log import InternalErrors, contained
from stepscope.runtime.accounting.ledger import Ledger, events_in, losses
from stepscope.runtime.display.text_table import human_count
from stepscope.runtime.events import clock, tracks
from stepscope.runtime.events.record import Block, EventBatch, Kind, join_blocks
from stepscope.runtime.export.exporter import Exporter
from stepscope.runtime.export.exporter_worker import ExporterWorker
from stepscope.runtime.export.fanout import Fanout
from stepscope.runtime.export.run import Run
from stepscope.runtime.flight.recorder import Flight
from stepscope.runtime.flight.settings import FlightRecorder
from stepscope.runtime.inbox.inbox import Inbox
from stepscope.runtime.inbox.messages import (
    ActionChanged,
    Advancing,
    Delivery,
    DetailChanged,
    Dropped,
    Flush,
    Message,
    Missing,
    Paused,
    Resumed,
    SourceEnded,
    Spawn,
    Watermark,
)
from stepscope.runtime.loop.backpressure import DrainedTurn
from stepscope.runtime.loop.pipeline_statistics import PipelineStatistics
from stepscope.runtime.options import Options
from stepscope.runtime.overhead.budget import OverheadBudget
from stepscope.runtime.overhead.controller import OVERHEAD, OverheadController
from stepscope.runtime.requests.armed_window import add_recorded
from stepscope.runtime.schedule.detail import FULL, Detail
from stepscope.runtime.sources.pending_deliveries import PendingDeliveries
from stepscope.runtime.sources.source import Producer, Source
from stepscope.runtime.sources.thread_bound import source_of
from stepscope.runtime.sources.thread_coverage import ThreadCoverage
from stepscope.runtime.threads.one_shot import OneShot
from stepscope.runtime.threads.user_code import GRACE, deliver_for
from stepscope.runtime.windows.borders import WindowBegins, WindowEnds
from stepscope.runtime.windows.open_window import OpenWindow
from stepscope.runtime.windows.router import RECORDER, Ending, WindowRouter
from stepscope.runtime.windows.step_statistics import OPTIMIZER, STEPS_END
from stepscope.runtime.windows.window import Window, WindowActions
from stepscope.runtime.windows.window_tables import WindowTables

ADVANCING_S = 0.5
"""How long closing waits for a backend after that said that it works on what it has yet to deliver."""
WALL_CHANGE_TOLD_NS = 500_000_000
"""Of less a window says nothing."""
CROWDED = 1000
"""Messages that wait to be handled, calls that wait for a backend, or windows that wait to be closed, from which on no further
window begins."""

HELD_UP_NS = 1_000_000_000
"""Time between two looks at windows that is longer than this does not count as waiting for sources: nobody could deliver."""


class Pipeline:
    """Takes what the drain loop drained and what backends delivered; gives each exporter what it can take."""

    def __init__(
        self,
        run: Run,
        serial: int,
        options: Options,
        exporters: list[Exporter],
        backends: list[Producer],
        actions: WindowActions,
        wake: Callable[[], object],
        wake_later: Callable[[], object],
        keep_last: FlightRecorder | None = None,
        session: Path | None = None,
        budget: OverheadBudget | None = None,
        transitions: Callable[[], int] = lambda: 0,
        left_out: Callable[[], int] = lambda: 0,
        ask: Callable[[Detail], None] = lambda _: None,
    ) -> None:
        """
        Args:
            budget: what recording may cost.
            transitions: time that changes of the action took from the program's threads so far, in ns.
            left_out: windows that were left out whole so far, as this was `crowded`.
            ask: has the level of detail changed, at the next step.
        """
        self.run_facts = run
        self.faults = InternalErrors(f"profiler {run.name!r}")
        self.options = options
        self.inbox: Inbox[Message] = Inbox(options.inbox_bytes, wake, wake_later)
        self.delivered = PendingDeliveries(self.inbox)
        enter = partial(deliver_for, self)
        self.sources = [source_of(backend, self.inbox, options, enter) for backend in backends]
        self.fanout = Fanout(exporters, run, options.queue_bytes, options.overflow == "drop_oldest")
        self.derived = 0
        """Calls of `derive` that have returned."""
        self.tables = WindowTables()
        self._track = tracks.borrow(run.pid, tracks.STEPS_TID, "steps")
        facts = serial, round(options.linger * 1e9), self._track
        self.flight = None if keep_last is None else Flight(keep_last, *facts, session, self.fanout.unwritten)
        self._windows = WindowRouter(*facts) if self.flight is None else self.flight.windows
        self._windows.opened = self.tables.begin
        self._windows.optimizer_steps = run.metadata().get(STEPS_END) == OPTIMIZER
        for source in self.sources:
            self._windows.add_source(source.name)
        self.overhead = OverheadController(budget, self._windows.detail, transitions=transitions)
        self._attendance = ThreadCoverage(self.sources, run.pid)
        self._bound = {source.name: source.backend.thread_bound for source in self.sources}
        self._wake, self._ask, self._left_out = wake, ask, left_out
        self.routed_to = 0
        """Everything of the recorder that began by this time, in ns, was routed, and seen by what fires."""
        self._unsaid = False
        self._actions = actions
        self._serial = serial
        self._tasks: anyio.abc.TaskGroup | None = None
        self._waiting_work: list[Callable[[], Coroutine[Any, Any, None]]] = []
        """What came before there were tasks to run it in."""
        self._closing, self._ended = anyio.Event(), anyio.Event()
        self._advancing_until = 0.0
        self._scope = anyio.CancelScope()
        self.notes: deque[str] = deque(maxlen=16)
        """What there was to say of windows, the latest."""
        self._looked = clock.now()
        self._flushes: list[Flush] = []
        self._drained = self._routed = self._unrouted = self._loop_ns = 0

    def start(self) -> None:
        """Starts the exporters, each on its thread. Those are there when it returns: a tool that looks at all threads, as
        torch's tracer of Python functions does, is not to meet them half made."""
        self.fanout.start(partial(deliver_for, self))

    async def run(self) -> None:
        """Answers flushes, and keeps to the overhead budget, until `aclose`."""
        deliver_for(self)
        with self._scope:
            async with anyio.create_task_group() as self._tasks:
                if self.overhead.budget is not None:
                    self._tasks.start_soon(self._oversee, self.overhead.budget.interval, name="stepscope overhead")
                for work in self._waiting_work:
                    self._tasks.start_soon(work)
                self._waiting_work.clear()
                await self._closing.wait()
        self._ended.set()

    @property
    def workers(self) -> list[ExporterWorker]:
        """Each exporter's."""
        return self.fanout.workers

    @property
    def crowded(self) -> bool:
        """Whether the loop, or a backend, is so far behind that no further window is to begin; from any thread."""
        behind = any(source.waiting >= CROWDED for source in self.sources)
        return behind or self.inbox.waiting >= CROWDED or self._windows.unfinished >= CROWDED

    @property
    def ending(self) -> Ending:
        """How the window ended that was open when the run did."""
        return self._windows.ending

    # called by the drain loop

    @contained(None)
    def take_messages(self) -> None:
        """Handles what is in the inbox; what backends delivered waits for the step marks of its time."""
        for message in self.inbox.pop_all():
            if isinstance(message, Delivery | Watermark | Dropped | SourceEnded):
                self.delivered.add(message)
            else:
                self._handle(message)
        if self.flight is not None:
            self.flight.watch.take_calls()

    async def process(self, turn: DrainedTurn, most: int, pace: Callable[[], Awaitable[bool]]) -> None:
        """Routes a turn: step marks first, then events in parts, then deliveries of backends; then windows are closed.

        Args:
            turn: parts that were routed are taken out of it.
            most: events of a part.
            pace: to be awaited after each part; false: nothing more is to be routed.
        """
        self.add_marks(join_blocks(turn.marks))
        while turn.blocks:
            self.take_block(*turn.next_part(most))
            if not await pace():
                return
        self.take_watermark(turn.until)
        while self.take_delivery(turn.until):
            if not await pace():
                return
        self.save(turn.until)
        if turn.spans is not None:
            self.close_windows(turn.spans)

    def take_delivery(self, until: int) -> bool:
        """Routes the next of what backends had delivered by `until`: all steps that began by then are known.

        Returns:
            Whether there was one.
        """
        message = self.delivered.pop(until)
        if message is None:
            return False
        self._handle(message)
        return True

    def expect(self, blocks: list[tuple[Block, bytes]]) -> None:
        """Counts what the recorder held, and will be routed or dropped."""
        self._drained += sum(events_in(events) for events, _ in blocks)

    @contained(None)
    def add_marks(self, marks: Block) -> None:
        """Takes the step marks, of all profilers, that the recorder held."""
        self._windows.add_marks(marks)

    @contained(None)
    def take_block(self, events: Block, args: bytes) -> None:
        """Routes a block of the recorder."""
        start = clock.now()
        self._routed += events_in(events)
        self._route(RECORDER, events, args)
        self._loop_ns += clock.now() - start

    @contained(None)
    def take_watermark(self, until: int) -> None:
        """Everything that the recorder held up to this time was routed."""
        self._windows.watermark(RECORDER, until)

    @contained(None)
    def save(self, until: int) -> None:
        """What is to be saved of the last steps goes to the exporters, as fast as they take it."""
        flight, start = self.flight, clock.now()
        if flight is not None:
            flight.look(until)
        self.routed_to = until
        while flight is not None and not self.fanout.behind():
            batches = flight.windows.deliver()
            if batches is None:
                break
            self._give(batches)
        self._loop_ns += clock.now() - start

    @contained(False)
    def closable(self) -> bool:
        """Whether a window waits for nothing but its open spans."""
        now = clock.now()
        held_up = now - self._looked - HELD_UP_NS
        if held_up > 0:  # as by torch, which keeps the interpreter's lock while it ends a recording
            self._windows.extend_linger(self._looked, held_up)
        self._looked = now
        return self._windows.closable(now)

    @contained(None)
    def close_windows(self, open_spans: Block) -> None:
        """Closes the windows that are ready."""
        start = clock.now()
        self.overhead.refresh()
        for window, batches in self._windows.finish(open_spans):
            if not window.empty:
                for batch in batches:
                    self._pass_on(batch)
                self._finish(window)
            elif window.table is not None:
                self.tables.discard(window.table)
            self._attendance.discard(window)
        self._loop_ns += clock.now() - start
        self.answer_flushes()

    @contained(None)
    def answer_flushes(self) -> None:
        """Answers flushes when no window waits any more: what came before them is with the exporters. One that came while the
        recorder was drained may be of what was recorded after that: it waits for the next time."""
        if self._flushes and not self._windows.waiting() and not self.delivered:
            flight, flushes, self._flushes = self.flight, self._flushes, []
            for flush in flushes:
                if flush.at <= self.routed_to and (flight is None or flight.resolved(flush.at)):
                    self._spawn(partial(self._flushed, flush.done))
                else:
                    self._flushes.append(flush)

    @contained(False)
    def busy(self) -> bool:
        """Whether the drain loop should look again soon."""
        return self._windows.waiting() or self.waited_for()

    @contained(False)
    def waited_for(self) -> bool:
        """Whether somebody waits for what the drain loop does next."""
        saving = self.flight is not None and self.flight.busy
        return saving or bool(self._flushes or self.delivered)

    # inside

    @contained(None)
    def _handle(self, message: Message) -> None:
        match message:
            case Delivery():
                self._route(message.source, message.events, message.args, message.launched_before)
            case Watermark():
                self._windows.watermark(message.source, message.at)
            case Dropped():
                self._windows.source_dropped(message.source, message.reason, message.count, message.at)
            case Missing():
                self._windows.source_missing(message.source, message.why, (message.start, message.end))
            case Advancing():
                self._windows.note_progress(message.source, clock.now())
                self._wait_on(message.source)
            case SourceEnded():
                self._windows.remove_source(message.source)
            case WindowBegins():
                self._windows.open(message.mark)
                self._windows.note_skipped(message.skipped)
                self._windows.note_armed(message.armed)
                self.overhead.begin(message.mark.ts)
                self._note_detail(message.mark.ts)
            case WindowEnds():
                self._windows.note_armed(message.armed)
                self._windows.close(message, clock.now())
                self.overhead.end(message.at)
            case ActionChanged():
                self._change_action(message)
            case DetailChanged():
                self._change_detail(message)
            case Paused():
                self._windows.pause(message.at)
                self.overhead.end(message.at)
            case Resumed():
                self.overhead.begin(message.at)
                self._give(self._windows.resume(message.at))
            case Flush():
                self._flushes.append(message)
            case Spawn():
                self._run_work(message)

    def _change_action(self, message: ActionChanged) -> None:
        for source in self.sources:
            if not source.backend.thread_bound:
                source.call(partial(source.transition, message.before, message.after, message.at))
            if not source.expected:
                self._windows.remove_source(source.name)

    def _change_detail(self, message: DetailChanged) -> None:
        for source in self.sources:
            if not source.backend.thread_bound:
                source.call(partial(source.set_detail, message.detail))
        if self.overhead.changed(message.at, message.step, message.level, message.detail) is not None:
            self._unsaid = True
            self._note_detail(message.at)

    def _note_detail(self, at: int) -> None:
        """Writes into the window that is open that the level has changed, or that it begins with lowered detail."""
        changes, begun = self.overhead.changes, self._windows.open_since
        if begun is None or not changes or (changes[-1].after == FULL and not self._unsaid):
            return
        self._unsaid = False
        at = max(at, begun)
        self._route(OVERHEAD, *self.overhead.change_event(changes[-1], at, self._track))
        self._route(OVERHEAD, self.overhead.cost_event(changes[-1].cost, at, self._track), b"")

    async def _oversee(self, interval: float) -> None:
        while not self._closing.is_set():
            with anyio.move_on_after(interval):
                await self._closing.wait()
            self._wake()  # where nothing is recorded nobody else does
            detail, cost = self.overhead.look(self.routed_to)
            if detail is not None:
                self._ask(detail)
            begun = self._windows.open_since
            if cost is not None and begun is not None and begun <= self.routed_to:
                self._route(OVERHEAD, self.overhead.cost_event(cost, self.routed_to, self._track), b"")

    def _route(self, source: str, events: Block, args: bytes, launched_before: int | None = None) -> None:
        if self.flight is not None and len(events):
            self.flight.saw(source, events)
            if source == RECORDER:  # what is kept costs as much as what is saved
                self.overhead.counted.add(events[(events["kind"] != Kind.STEP) | (events["id"] == self._serial)])
        if launched_before is None:
            self._give(self._windows.route(source, events, args))
        else:
            self._give(self._windows.route_launched(source, events, args, launched_before))

    def _give(self, batches: list[EventBatch]) -> None:
        for batch in batches:
            self._pass_on(batch)
        for batch in batches:  # behind all: while a backend derives, the accounts of what was recorded agree
            if batch.source == RECORDER:
                self._derive(batch)

    def _pass_on(self, batch: EventBatch) -> None:
        """The one way to the exporters: what goes it is counted for the costs, and for whose threads took part."""
        self.fanout.offer(batch)
        if batch.source == RECORDER:
            self._attendance.add(batch)
            if self.flight is None:
                self.overhead.counted.add(batch.events)
        elif self._bound.get(batch.source, False):
            self.overhead.counted.add(batch.events, low=True)

    def _derive(self, batch: EventBatch) -> None:
        for source in self.sources:
            derived = source.derive(batch)
            self.derived += 1
            if derived is not None and len(derived):
                self._route(source.name, derived, b"")

    def _finish(self, window: OpenWindow) -> None:
        if window.table is not None:
            self.tables.close(window.index, window.table)
        start, end = window.interval
        steps = window.steps()
        add_recorded(window.facts, self.run_facts.rank, steps)
        notes = [*window.notes, window.reason] if window.reason else list(window.notes)
        if not window.complete:
            notes.append(
                f"incomplete: the window ended after {human_count(len(steps), 'step')}, before its planned end"
            )
        notes += window.missing_notes()
        sources = window.ledger()
        if window.sources_incomplete and not window.events:
            notes.append("empty: nothing but step marks was recorded")
        elif not window.events:
            listeners = self._attendance.listeners(window, sources)
            why = f"were spans, operators or a backend active?{' ' if listeners else ''}{listeners}"
            notes.append(f"empty: nothing but step marks was recorded; {why}")
        if not window.sources_incomplete:  # else it is known what kept the backend from recording
            notes += self._attendance.notes(window, sources)
        notes += self.overhead.notes(window.interval)
        self.notes.extend(f"window {window.index}: {note}" for note in notes)
        change = clock.wall_clock.change(start, end)
        if abs(change) >= WALL_CHANGE_TOLD_NS:
            notes.append(
                f"the wall clock was set by {change / 1e9:+,.1f} s: times in files count on as if it had not been"
            )
        finished = Window(
            index=window.index,
            profiler=self.run_facts.name,
            start_ns=start,
            end_ns=end,
            steps=steps,
            complete=window.complete and not window.sources_incomplete,
            diagnostics=tuple(notes),
            ledger=Ledger(sources, self.fanout.outputs(window.index), _core.counts()),
            metadata={**self.run_facts.metadata(), **window.facts, **self.overhead.facts(window.interval)},
            wall_start_ns=self.run_facts.wall(start),
            actions=self._actions,
        )
        self.fanout.close_window(finished)
        for index in () if self.flight is None else self.flight.finished(finished):
            self.fanout.discard_window(index)

    def _spawn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._tasks is None:
            self._waiting_work.append(work)
        else:
            self._tasks.start_soon(work)

    def _run_work(self, message: Spawn) -> None:
        for source in self.sources:
            if source.name == message.source:
                source.spawn(message.work)

    async def _flushed(self, done: OneShot[bool]) -> None:
        await self.fanout.drained()
        done.set_result(True)

    # end

    async def aclose(self, deadline: float) -> None:
        """Closes backends, then exporters, by `deadline` (the loop's clock); then drops what is left, and counts it."""
        self._end_keeping()
        self._drop_rest(self.inbox.pop_all())  # before the exporters write their last accounts
        self._closing.set()
        with anyio.CancelScope(deadline=deadline):
            await self.fanout.finish(lambda: deadline - anyio.current_time())
            await self._ended.wait()
        self.overhead.refresh()
        if not self._ended.is_set() or not self.fanout.ended:
            self._scope.cancel()
            self.fanout.cancel()
            with anyio.move_on_after(GRACE + 0.05):
                await self._ended.wait()
                await self.fanout.wait()
        self.fanout.abandon()
        self._drop_rest(self.inbox.close())
        tracks.give_back(self._track, self.run_facts.pid, tracks.STEPS_TID, "steps")
        for flush in self._flushes:
            flush.done.set_result(False)

    @contained(None)
    def _end_keeping(self) -> None:
        """What windows that are saved wait for is given to them."""
        if self.flight is not None:
            self.flight.watch.end()
            self._give(self.flight.windows.end_retention())

    def _drop_rest(self, messages: list[Message]) -> None:
        """What backends delivered, and nobody sorts any more."""
        for message in (*self.delivered.pop_all(), *messages):
            if isinstance(message, Delivery):
                self.drop_closed(message.source, message.events)
            elif isinstance(message, Dropped | Missing):
                self._handle(message)

    @contained(None)
    def drop_closed(self, source: str, events: Block) -> None:
        """Counts events that came too late for the deadline of closing."""
        count = events_in(events)
        if source == RECORDER:
            self._unrouted += count
        if count:
            self._windows.source_dropped(source, "closed", count, int(events["ts"][0]))
        for reason, lost in losses(events).items():
            self._windows.source_dropped(source, reason, lost, int(events["ts"][0]))

    async def close_sources(self, deadline: float, *, advancing: float) -> None:
        """Closes all backends at the same time; what they deliver now still counts.

        Whatever becomes of a backend, the others are closed, and no window waits for it any longer.

        Args:
            deadline: when each must have ended, by the loop's clock.
            advancing: the same for one that says that it works on what it has yet to deliver.
        """
        self._advancing_until = advancing

        async def close(source: Source) -> None:
            try:
                await source.aclose(deadline)
            finally:
                self.inbox.put(SourceEnded(source.name))

        async with anyio.create_task_group() as group:
            for source in self.sources:
                group.start_soon(close, source, name=f"stepscope close {source.name}")

    def _wait_on(self, name: str) -> None:
        """A backend that closes has longer, as it says that it advances."""
        until = min(anyio.current_time() + ADVANCING_S, self._advancing_until)
        for source in self.sources:
            if source.name == name:
                source.extend_deadline(until)

    def ledger(self) -> Ledger:
        """Accounts of the run, as they are now."""
        outputs = {worker.name: worker.statistics().ledger for worker in self.workers}
        return Ledger(self._windows.ledger(), outputs, _core.counts(), self._left_out())

    def statistics(self) -> PipelineStatistics:
        """Accounts so far."""
        return PipelineStatistics(
            inbox=self.inbox.statistics(),
            windows=self._windows.statistics(),
            exporters=tuple(worker.statistics() for worker in self.workers),
            faults=self.faults.raised.count,
            drained=self._drained,
            routed=self._routed,
            unrouted=self._unrouted,
            undelivered=self.delivered.events,
            batches=self.fanout.batches,
            offered=self.fanout.offered,
            loop_ns=self._loop_ns,
            flight=None if self.flight is None else self.flight.statistics(),
            overhead=self.overhead.statistics(),
        )

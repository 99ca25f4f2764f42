"""The pipeline of one profiler, on the loop: inbox, windows, fanout, running tables."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import anyio
import anyio.abc
import msgspec

from stepscope.runtime import _core
from stepscope.runtime.accounting.error_log import InternalErrors, contained
from stepscope.runtime.accounting.ledger import Ledger, events_in, losses
from stepscope.runtime.display.text_table import human_count
from stepscope.runtime.events import clock, tracks
from stepscope.runtime.events.record import Block, EventBatch, Kind, join_blocks
from stepscope.runtime.events.survey import Survey
from stepscope.runtime.export.exporter import Exporter
from stepscope.runtime.export.exporter_accounts import ExporterStatistics
from stepscope.runtime.export.exporter_worker import ExporterWorker
from stepscope.runtime.export.fanout import Fanout
from stepscope.runtime.export.run import Run
from stepscope.runtime.flight.recorder import Flight, FlightStatistics
from stepscope.runtime.flight.settings import FlightRecorder
from stepscope.runtime.inbox.inbox import Inbox, InboxStatistics, PendingDeliveries
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
from stepscope.runtime.memory_limits import MemoryLimits
from stepscope.runtime.options import Options
from stepscope.runtime.overhead.budget import OverheadBudget, OverheadStatistics
from stepscope.runtime.overhead.controller import OVERHEAD, OverheadController
from stepscope.runtime.requests.armed_window import add_recorded
from stepscope.runtime.schedule.detail import FULL, Detail
from stepscope.runtime.sources.source import Producer, Source
from stepscope.runtime.sources.thread_bound import source_of
from stepscope.runtime.sources.thread_coverage import ThreadCoverage
from stepscope.runtime.threads.one_shot import OneShot
from stepscope.runtime.threads.user_code import CANCEL_TIMEOUT_S, deliver_for
from stepscope.runtime.windows.open_window import OpenWindow
from stepscope.runtime.windows.router import RECORDER, WindowRouter, WindowsStatistics
from stepscope.runtime.windows.step_feed import StepFeed
from stepscope.runtime.windows.step_marks import WindowBegins, WindowEnds
from stepscope.runtime.windows.step_statistics import begins_with_startup
from stepscope.runtime.windows.window import Window, WindowActions
from stepscope.runtime.windows.window_tables import WindowTables

DRAIN_S, LIVE_DRAIN_S = 2.0, 1.0
"""Seconds between two drains by default, and while somebody follows the steps."""
ADVANCING_S = 0.5
"""Seconds that closing waits for a backend after it reported progress."""
MIN_WALL_CHANGE_NS = 500_000_000
"""Smaller changes of the wall clock are not noted."""
MAX_WAITING = 1000
"""No further window begins while so many messages wait for the loop, calls for a backend, or windows for their end."""

LATE_SOURCE_TIMEOUT_NS = 5_000_000_000
"""So long live facts of a step wait for sources that have not delivered their events of it."""
LOOP_BLOCKED_NS = 1_000_000_000
"""A longer time between two checks of windows does not count as waiting for sources, as the loop was blocked."""


class RunSetup(msgspec.Struct, frozen=True, kw_only=True):
    """Backends, exporters and settings of a run, as `trace()` got them."""

    options: Options
    limits: MemoryLimits
    backends: Sequence[Producer]
    exporters: Sequence[Exporter]
    keep_last: FlightRecorder | None
    """Settings of the flight recorder."""
    budget: OverheadBudget | None
    """Allowed cost of recording."""


class PipelineStatistics(msgspec.Struct, frozen=True):
    """Accounts of every stage behind the recorder."""

    inbox: InboxStatistics
    windows: WindowsStatistics
    exporters: tuple[ExporterStatistics, ...]
    drained: int
    """Events that the recorder passed to this profiler."""
    routed: int
    """Events among these that the window router has processed."""
    unrouted: int
    """Events among these that were dropped because closing reached its deadline."""
    undelivered: int
    """Events of backends that wait for the window router: the steps of their time are not known yet."""
    offered: int
    """Events offered to each exporter."""
    loop_ns: int
    """Time that the loop spent on this pipeline, exporters not included, in ns."""
    overhead: OverheadStatistics
    flight: FlightStatistics | None = None
    faults: int = 0
    """Internal errors: mistakes in stepscope, or a lack of memory."""


class PipelineSteps(Protocol):
    """The side of the threads that step, as the pipeline needs it."""

    serial: int
    """Number of the profiler in its session."""
    skipped_windows: int
    """Windows that were skipped because the pipeline was `crowded`."""

    @property
    def cost_ns(self) -> int: ...

    def request_detail(self, detail: Detail) -> None: ...


class Pipeline:
    """Routes drained events and deliveries of backends into windows, and passes them to the exporters."""

    def __init__(
        self,
        run: Run,
        setup: RunSetup,
        inbox: Inbox[Message],
        steps: PipelineSteps,
        *,
        actions: WindowActions,
        session: Path,
    ) -> None:
        """
        Args:
            run: facts for the exporters, without accounts, which this adds.
            setup: backends, exporters and settings.
            inbox: with messages of the stepping threads and deliveries of backends.
            steps: the side of the threads that step.
            actions: what can be asked of a window later.
            session: the session directory, for the files of the flight recorder.
        """
        self._feed = StepFeed(only_closed=setup.keep_last is not None)
        self.run_facts = run = msgspec.structs.replace(run, ledger=self.ledger, steps=self._feed)
        self.faults = InternalErrors(f"profiler {run.name!r}")
        self.options, self.limits = options, limits = setup.options, setup.limits
        self.inbox = inbox
        self.delivered = PendingDeliveries(inbox)
        enter = partial(deliver_for, self)
        self.sources = [source_of(backend, inbox, enter) for backend in setup.backends]
        self.fanout = Fanout(setup.exporters, run, limits.queue_bytes, options.overflow == "drop_oldest")
        self.derived = 0
        """Calls of `derive` that have returned."""
        self.tables = WindowTables()
        self._track = tracks.borrow(run.pid, tracks.STEPS_TID, "steps")
        facts = steps.serial, round(options.linger * 1e9), self._track
        self.flight = None
        if setup.keep_last is not None:
            self.flight = Flight(setup.keep_last, *facts, session, self.fanout.unwritten)
        self._windows = WindowRouter(*facts) if self.flight is None else self.flight.windows
        self._windows.opened = self._begin_window
        self._windows.optimizer_steps = begins_with_startup(run.metadata())
        for source in self.sources:
            self._windows.add_source(source.name)
        self.overhead = OverheadController(setup.budget, self._windows.detail, transitions=lambda: steps.cost_ns)
        self._coverage = ThreadCoverage(self.sources, run.pid)
        self._bound = {source.name: source.backend.thread_bound for source in self.sources}
        self._steps = steps
        self.routed_to = 0
        """All events of the recorder that began by this time, in ns, were routed, and the triggers have seen them."""
        self._change_unnoted = False
        self._actions = actions
        self._serial = steps.serial
        self._tasks: anyio.abc.TaskGroup | None = None
        self._waiting_work: list[Callable[[], Coroutine[Any, Any, None]]] = []
        """Work that waits for the task group."""
        self._closing, self._ended = anyio.Event(), anyio.Event()
        self._advancing_until = 0.0
        self._scope = anyio.CancelScope()
        self.notes: deque[str] = deque(maxlen=16)
        """The latest diagnostics of windows."""
        self._checked_at = clock.now()
        self._flushes: list[Flush] = []
        self._drained = self._routed = self._unrouted = self._loop_ns = 0

    def start(self) -> None:
        """Starts the exporters' threads, which exist when it returns: a tool that inspects all threads, such as torch's tracer of
        Python functions, must not meet half-started ones."""
        self.fanout.start(partial(deliver_for, self))

    @property
    def drain_interval(self) -> float:
        """Longest time between two drains, in seconds."""
        return self.options.drain_interval or (LIVE_DRAIN_S if self._feed.followed else DRAIN_S)

    async def run(self) -> None:
        """Answers flushes, and controls the overhead, until `aclose`."""
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
        return self.fanout.workers

    @property
    def crowded(self) -> bool:
        """Whether the loop or a backend is so far behind that no further window may begin. Any thread may read it."""
        behind = any(source.waiting >= MAX_WAITING for source in self.sources)
        return behind or self.inbox.waiting >= MAX_WAITING or self._windows.unfinished >= MAX_WAITING

    @property
    def cut_steps(self) -> int:
        """Number of steps of the run's last window, if it was cut before its planned end."""
        return self._windows.cut_steps

    # called by the drain loop

    @contained(None)
    def handle_messages(self) -> None:
        """Handles the messages of the inbox. Deliveries of backends wait for the step marks of their time."""
        for message in self.inbox.pop_all():
            if isinstance(message, Delivery | Watermark | Dropped | SourceEnded):
                self.delivered.add(message)
            else:
                self._handle(message)
        if self.flight is not None:
            self.flight.watch.note_calls()

    async def process(self, turn: DrainedTurn, part_events: int, pace: Callable[[], Awaitable[bool]]) -> None:
        """Routes a turn: first step marks, then events in parts, then deliveries of backends that arrived by its time, as all
        steps that began by then are known. Then closes windows.

        Args:
            turn: the turn. Routed parts are removed from it.
            part_events: limit of events in a part.
            pace: awaited after each part. If it returns false, routing stops.
        """
        self.add_marks(join_blocks(turn.marks))
        while turn.blocks:
            self.route_block(*turn.next_part(part_events))
            if not await pace():
                return
        self.set_watermark(turn.until)
        while (message := self.delivered.pop(turn.until)) is not None:
            self._handle(message)
            if not await pace():
                return
        self.save(turn.until)
        if turn.spans is not None:
            self.close_windows(turn.spans)
        self.show_steps()

    @contained(None)
    def show_steps(self, *, last: bool = False) -> None:
        """Hands the facts of new steps to exporters that show them live."""
        self._feed.look(self._windows.delivered_until(LATE_SOURCE_TIMEOUT_NS), clock.now(), last=last)

    def count_drained(self, count: int) -> None:
        """Counts drained events, which will be routed or dropped."""
        self._drained += count

    @contained(None)
    def add_marks(self, marks: Block) -> None:
        """Adds drained step marks of all profilers."""
        self._windows.add_marks(marks)

    @contained(None)
    def route_block(self, events: Block, args: bytes, found: Survey) -> None:
        """Routes a block of the recorder, with its survey. If the block is writable, its events get their step numbers in place."""
        start = clock.now()
        self._routed += found.events - found.gaps
        self._route(RECORDER, events, args, found)
        self._loop_ns += clock.now() - start

    @contained(None)
    def set_watermark(self, until: int) -> None:
        """All events of the recorder up to this time were routed."""
        self._windows.watermark(RECORDER, until)

    @contained(None)
    def save(self, until: int) -> None:
        """Passes retained steps that are to be saved to the exporters, at their speed."""
        flight, start = self.flight, clock.now()
        if flight is not None:
            flight.look(until)
        self.routed_to = until
        while flight is not None and not any(worker.half_full() for worker in self.workers):
            batches = flight.windows.deliver()
            if batches is None:
                break
            self._emit(batches)
        self._loop_ns += clock.now() - start

    @contained(False)
    def closable(self) -> bool:
        """Whether a window is ready to close."""
        now = clock.now()
        blocked_ns = now - self._checked_at - LOOP_BLOCKED_NS
        if blocked_ns > 0:  # such as by torch, which holds the interpreter's lock while it ends a recording
            self._windows.extend_linger(self._checked_at, blocked_ns)
        self._checked_at = now
        return self._windows.closable(now)

    @contained(None)
    def close_windows(self, open_spans: Block) -> None:
        start = clock.now()
        self.overhead.refresh()
        for window, batches in self._windows.finish(open_spans):
            if not window.empty:
                for batch in batches:
                    self._pass_on(batch)
                self._finish(window)
            elif window.table is not None:
                self.tables.discard(window.table)
                self._feed.discard(window)
            self._coverage.discard(window)
        self._loop_ns += clock.now() - start
        self.answer_flushes()

    @contained(None)
    def answer_flushes(self) -> None:
        """Answers flushes when no window waits: the exporters have all earlier events. A flush that arrived during the drain may
        concern later events, so it waits for the next drain."""
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
        return self._windows.waiting() or self.is_awaited()

    @contained(False)
    def is_awaited(self) -> bool:
        """Whether a save, a flush or a delivery waits for the next drain."""
        saving = self.flight is not None and self.flight.busy
        return saving or bool(self._flushes or self.delivered)

    # inside

    @contained(None)
    def _handle(self, message: Message) -> None:
        match message:
            case Delivery():
                self._route(message.source, message.events, message.args, launched_before=message.launched_before)
            case Watermark():
                self._windows.watermark(message.source, message.at)
            case Dropped():
                self._windows.source_dropped(message.source, message.reason, message.count, message.at)
            case Missing():
                self._windows.source_missing(message.source, message.why, (message.start, message.end))
            case Advancing():
                self._windows.note_progress(message.source, clock.now())
                # If it closes, its deadline is extended.
                until = min(anyio.current_time() + ADVANCING_S, self._advancing_until)
                self._source(message.source).extend_deadline(until)
            case SourceEnded():
                self._windows.remove_source(message.source)
            case WindowBegins():
                self._windows.open(message.mark)
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
                self._emit(self._windows.resume(message.at))
            case Flush():
                self._flushes.append(message)
            case Spawn():
                self._source(message.source).spawn(message.work)

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
            self._change_unnoted = True
            self._note_detail(message.at)

    def _note_detail(self, at: int) -> None:
        """Writes an event into the open window if the level has changed, or if the window begins with lowered detail."""
        changes, begun = self.overhead.changes, self._windows.open_since
        if begun is None or not changes or (changes[-1].after == FULL and not self._change_unnoted):
            return
        self._change_unnoted = False
        at = max(at, begun)
        self._route(OVERHEAD, *self.overhead.change_event(changes[-1], at, self._track))
        self._route(OVERHEAD, self.overhead.cost_event(changes[-1].cost, at, self._track), b"")

    async def _oversee(self, interval: float) -> None:
        while not self._closing.is_set():
            with anyio.move_on_after(interval):
                await self._closing.wait()
            self.inbox.wake()  # without recording, nothing else wakes the loop
            detail, cost = self.overhead.look(self.routed_to)
            if detail is not None:
                self._steps.request_detail(detail)
            begun = self._windows.open_since
            if cost is not None and begun is not None and begun <= self.routed_to:
                self._route(OVERHEAD, self.overhead.cost_event(cost, self.routed_to, self._track), b"")

    def _route(
        self, source: str, events: Block, args: bytes, found: Survey | None = None, launched_before: int | None = None
    ) -> None:
        if self.flight is not None and len(events):
            self.flight.saw(source, events)
            if source == RECORDER:  # retained events cost as much as saved ones
                self.overhead.counted.add(events[(events["kind"] != int(Kind.STEP)) | (events["id"] == self._serial)])
        if launched_before is None:
            owned = source == RECORDER and events.flags.writeable
            self._emit(self._windows.route(source, events, args, found, owned=owned))
        else:
            self._emit(self._windows.route_launched(source, events, args, launched_before))

    def _emit(self, batches: list[EventBatch]) -> None:
        for batch in batches:
            self._pass_on(batch)
        for batch in batches:  # after all are offered, so that the accounts agree while a backend derives
            if batch.source == RECORDER:
                self._derive(batch)

    def _pass_on(self, batch: EventBatch) -> None:
        """Offers a batch to the exporters. Counts its events for the cost of recording, and its threads."""
        self.fanout.offer(batch)
        if batch.source == RECORDER:
            self._coverage.add(batch)
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

    def _begin_window(self, window: OpenWindow) -> None:
        if window.table is not None:
            self.tables.begin(window.table)
        self._feed.open(window)

    def _finish(self, window: OpenWindow) -> None:
        if window.table is not None:
            self.tables.close(window.index, window.table)
        self._feed.close(window)
        start, end = window.interval
        steps = window.steps()
        add_recorded(window.facts, self.run_facts.rank, steps)
        notes = [*window.notes, *filter(None, [window.reason])]
        if not window.complete:
            notes.append(
                f"incomplete: the window ended after {human_count(len(steps), 'step')}, before its planned end"
            )
        notes += window.missing_notes()
        sources = window.ledger()
        if window.sources_incomplete and not window.events:
            notes.append("empty: nothing but step marks was recorded")
        elif not window.events:
            listeners = self._coverage.listeners(window, sources)
            notes.append(f"empty: nothing but step marks was recorded; {listeners or self._how_to_record()}")
        if not window.sources_incomplete:  # else there is another reason
            notes += self._coverage.notes(window, sources)
        notes += self.overhead.notes(window.interval)
        self.notes.extend(f"window {window.index}: {note}" for note in notes)
        change = clock.wall_clock.change(start, end)
        if abs(change) >= MIN_WALL_CHANGE_NS:
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
            ledger=Ledger(sources, {}, _core.counts()),  # each exporter adds the outputs
            metadata={**self.run_facts.metadata(), **window.facts},
            wall_start_ns=self.run_facts.wall(start),
            actions=self._actions,
        )
        self.fanout.close_window(finished)
        for index in () if self.flight is None else self.flight.finished(finished):
            self.fanout.discard_window(index)

    def _how_to_record(self) -> str:
        operators = "torch" in sys.modules and "torch" not in self._bound
        torch = ", or record torch's operators with backends=[stepscope.TorchBackend()]" if operators else ""
        return f"mark code with stepscope.span(){torch}"

    def _spawn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._tasks is None:
            self._waiting_work.append(work)
        else:
            self._tasks.start_soon(work)

    def _source(self, name: str) -> Source:
        return next(source for source in self.sources if source.name == name)

    async def _flushed(self, done: OneShot[bool]) -> None:
        await self.fanout.drained()
        done.set_result(True)

    # end

    async def aclose(self, deadline: float) -> None:
        """Closes the exporters by `deadline` (the loop's clock). Then drops and counts remaining events."""
        self._end_retention()
        self.show_steps(last=True)
        self._drop_rest(self.inbox.pop_all())  # before the exporters write their last accounts
        self._closing.set()
        with anyio.CancelScope(deadline=deadline):
            await self.fanout.finish(lambda: deadline - anyio.current_time())
            await self._ended.wait()
        self.overhead.refresh()
        if not self._ended.is_set() or not self.fanout.ended:
            self._scope.cancel()
            self.fanout.cancel()
            with anyio.move_on_after(CANCEL_TIMEOUT_S + 0.05):
                await self._ended.wait()
                await self.fanout.wait()
        self.fanout.abandon()
        self._remove_retained()
        self._drop_rest(self.inbox.close())
        tracks.release(self._track, self.run_facts.pid, tracks.STEPS_TID, "steps")
        for flush in self._flushes:
            flush.done.set_result(False)

    @contained(None)
    def _end_retention(self) -> None:
        """Completes windows that are being saved."""
        if self.flight is not None:
            self.flight.watch.end()
            for batches in self.flight.windows.end_retention():
                self._emit(batches)

    @contained(None)
    def _remove_retained(self) -> None:
        """Deletes what was retained, which the exporters have now."""
        if self.flight is not None:
            self.flight.windows.retention.remove_files()

    def _drop_rest(self, messages: list[Message]) -> None:
        """Drops deliveries of backends, and counts them."""
        for message in (*self.delivered.pop_all(), *messages):
            if isinstance(message, Delivery):
                self.drop_closed(message.source, message.events)
            elif isinstance(message, Dropped | Missing):
                self._handle(message)

    @contained(None)
    def drop_closed(self, source: str, events: Block) -> None:
        """Counts events that missed the deadline of closing."""
        count = events_in(events)
        if source == RECORDER:
            self._unrouted += count
        if count:
            self._windows.source_dropped(source, "closed", count, int(events["ts"][0]))
        for reason, lost in losses(events).items():
            self._windows.source_dropped(source, reason, lost, int(events["ts"][0]))

    async def close_sources(self, deadline: float, *, advancing: float) -> None:
        """Closes all backends concurrently, by the deadline (the loop's clock), or the later one if they report progress.

        Their last deliveries still count. If one fails, the others are closed all the same, and windows do not wait for it.
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

    def ledger(self) -> Ledger:
        outputs = {worker.name: worker.statistics().ledger for worker in self.workers}
        return Ledger(self._windows.ledger(), outputs, _core.counts(), self._steps.skipped_windows)

    def statistics(self) -> PipelineStatistics:
        return PipelineStatistics(
            inbox=self.inbox.statistics(),
            windows=self._windows.statistics(),
            exporters=tuple(worker.statistics() for worker in self.workers),
            faults=self.faults.raised.count,
            drained=self._drained,
            routed=self._routed,
            unrouted=self._unrouted,
            undelivered=self.delivered.events,
            offered=self.fanout.offered,
            loop_ns=self._loop_ns,
            flight=None if self.flight is None else self.flight.statistics(),
            overhead=self.overhead.statistics(),
        )

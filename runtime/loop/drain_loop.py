"""The background thread with its event loop: it drains the rings into the queue of every profiler."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from typing import Any, TypeVar

import anyio

from stepscope.runtime import _core
from stepscope.runtime.accounting.error_log import InternalErrors
from stepscope.runtime.events import clock
from stepscope.runtime.events.record import Block, Kind, join_blocks, without_ids
from stepscope.runtime.events.survey import of_kind
from stepscope.runtime.export.exporter_worker import SLOW_EXPORTER_TIMEOUT_S
from stepscope.runtime.loop.backpressure import BackpressureQueue, DrainedBlock
from stepscope.runtime.loop.pipeline import Pipeline
from stepscope.runtime.loop_threads.condition import LoopCondition, WakeUp
from stepscope.runtime.loop_threads.loop_thread import JOIN_S, LoopThread
from stepscope.runtime.recording.recorder import Recorder
from stepscope.runtime.session.directory import JoinSignal
from stepscope.runtime.sources.source import Source
from stepscope.runtime.threads import signals
from stepscope.runtime.threads.background_call import BackgroundCall
from stepscope.runtime.threads.native_threads import RLock
from stepscope.runtime.threads.one_shot import OneShot
from stepscope.runtime.threads.user_code import deliver_for
from stepscope.runtime.windows.router import RECORDER

T = TypeVar("T")

RECHECK_S = 0.001
"""Seconds until the next drain during a change of action."""
CROWDED_S = 0.01
"""Seconds until the next drain while the rings are full of events that journals have not written yet."""
AFTER_FAULT_S = 0.1
"""Seconds until the next drain after an internal error."""
ANSWER_S = 0.05
"""Seconds after which a loop that does not answer counts as blocked."""
BEGIN_CLOSING_S = 0.05
"""Minimum time for closing a backend, even after the deadline."""
IDLE_S = 5.0
"""Seconds until one more drain when nothing is recorded any more, for what came late. After it the loop sleeps until it is woken, or
drains as often while it must look for something."""


class DrainLoop:
    """One per process while any profiler is open. The first one starts it, the last one stops it.

    Its thread is a daemon named `stepscope`. The loop is uvloop's if that is installed, else asyncio's.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._pipelines: list[Pipeline] = []
        self._queues: dict[Pipeline, BackpressureQueue] = {}
        """The queue of each pipeline."""
        self._closing: list[Pipeline] = []
        """Pipelines that get no further events, and whose exporters write their queues."""
        self._faults = InternalErrors("the runtime's loop")
        self._tasks: set[asyncio.Task[None]] = set()
        self._unrouted: list[DrainedBlock] = []
        self._drained_ns = 0
        """Begin of the last drain."""
        self._passed = LoopCondition()
        """Notified when a queue is empty, when a profiler is added or removed, and with each wake-up."""
        self._inbox_waits = False
        """Whether an inbox has a message."""
        self._woken_at = 0.0
        """Time of the last wake-up, by the loop's clock."""
        self._removing = 0
        """Number of profilers that begin to close. Drains wait for no exporter then."""
        self._stopping = False
        self._begun: OneShot[None] = OneShot()
        self._ended: OneShot[None] = OneShot()
        self._thread = LoopThread("stepscope", self._run, self._failed)
        self._begun.result()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._wake, self._draining = asyncio.Event(), asyncio.Lock()
        self._wake_up = WakeUp(self._loop, self._on_wake)
        self._wake_up_later = WakeUp(self._loop, self._on_wake_later)
        self._check_signals()
        self._joins = JoinSignal(self._recorder.directory)
        self._loop.add_reader(self._recorder.wake_fd, self._on_native_wake)
        self._begun.set_result(None)
        try:
            await self._drain_for_ever()
            while self._tasks:
                await asyncio.wait(self._tasks)
        finally:
            self._loop.remove_reader(self._recorder.wake_fd)
            self._joins.close()
            self._signal_check.cancel()
            self._recorder.late_release.end()
        self._ended.set_result(None)

    def _failed(self, error: BaseException) -> None:
        self._begun.set_exception(error)
        self._ended.set_exception(error)

    def _on_native_wake(self) -> None:
        """A ring is half full, or a signal came that is to end the process."""
        _core.clear_wake()
        self._look_at_signal()
        self._request_drain()

    def _look_at_signal(self) -> None:
        if _core.signal_that_came():
            # The main thread has this long for its handler.
            self._loop.call_later(signals.CHECK_INTERVAL_S, signals.look)

    def _on_wake(self) -> None:
        # Before the drain: later messages wake the loop again.
        self._wake_up.pending = self._wake_up_later.pending = False
        self._inbox_waits = True
        self._woken_at = self._loop.time()
        self._request_drain()

    def _request_drain(self) -> None:
        self._wake.set()
        self._passed.notify_all()

    def _check_signals(self) -> None:
        """Polls, as nothing reports that the program has replaced a signal handler."""
        signals.look()
        self._signal_check = self._loop.call_later(signals.CHECK_INTERVAL_S, self._check_signals)

    # from any thread

    def wake(self) -> None:
        """Makes the drain loop read its inboxes and rings."""
        self._wake_up.set()

    def wake_later(self) -> None:
        """Wakes the drain loop when `Options.drain_interval` has passed since the last wake-up.

        So small windows are routed together: each turn acquires the interpreter's lock, which the program needs.
        """
        if not self._wake_up.pending:
            self._wake_up_later.set()

    def _on_wake_later(self) -> None:
        interval = min((pipeline.drain_interval for pipeline in self._pipelines), default=0.0)
        self._loop.call_at(self._woken_at + interval, self._on_wake)

    def _journal_progressed(self) -> None:
        """A journal has written: many slots of its events are freed at once, and not only after the next drain."""
        if self._recorder.release_wanted():
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._recorder.late_release.release_due)

    def start(self, work: Callable[..., Awaitable[T]], *args: Any, name: str = "stepscope call") -> OneShot[T]:
        """Runs a coroutine function on the loop, and does not wait for it. The result is a `RuntimeError` if the loop has ended."""
        done: OneShot[T] = OneShot()

        async def run() -> None:
            try:
                done.set_result(await work(*args))
            except BaseException as error:  # the loop continues
                done.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(lambda: self._create_task(run(), name))
        except RuntimeError as error:
            done.set_exception(error)
        return done

    def _create_task(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)  # the loop has only a weak reference
        task.add_done_callback(self._tasks.discard)

    def do(self, work: Callable[[], None]) -> None:
        """Calls a function on the loop, and waits for it. Any thread may call."""

        async def call() -> None:
            work()

        work() if self.on_loop() else self.start(call).result()

    def open(self, source: Source) -> OneShot[None]:
        """Opens the backend of a source on its thread, if it is not open. Any thread may call; does not wait."""
        opened: OneShot[None] = OneShot()
        if self.on_loop():
            source.open_on_thread(opened)
        else:
            self._loop.call_soon_threadsafe(source.open_on_thread, opened)
        return opened

    def blocked_in(self) -> str:
        """The function of a part that blocks the loop, such as a backend's `derive`, with its file and line; empty if there is none
        within `ANSWER_S` seconds."""
        answered: OneShot[None] = OneShot()
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(answered.set_result, None)
        return "" if answered.wait(ANSWER_S) else self._thread.inside()

    def on_loop(self) -> bool:
        """Whether the caller runs on this loop."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def add(self, make: Callable[[], Pipeline]) -> Pipeline:
        """Creates and starts a pipeline on the loop. Any thread may call."""

        made: list[Pipeline] = []

        def start() -> None:
            pipeline = make()
            made.append(pipeline)
            journals = [worker for worker in pipeline.workers if worker.is_journal]
            for worker in journals:
                worker.progressed = self._journal_progressed
            pipeline.start()
            pipeline.count_drained(sum(block.event_count for block in self._unrouted))
            self._pipelines += made
            self._queues[pipeline] = BackpressureQueue(
                pipeline.process,
                pipeline.drop_closed,
                pipeline.delivered,
                pipeline.workers,
                pipeline.limits,
                pipeline.faults,
            )
            if journals:
                self._recorder.late_release.begin()
            self._passed.notify_all()

        self.do(start)
        (pipeline,) = made
        self.start(pipeline.run, name="stepscope pipeline")
        self.start(self._run_queue, pipeline, name="stepscope queue")
        self.wake()
        return pipeline

    async def _run_queue(self, pipeline: Pipeline) -> None:
        deliver_for(pipeline)
        await self._queues[pipeline].run(self._passed)

    def stop(self) -> None:
        """Ends the loop and joins the thread. All pipelines must be closed."""
        self._stopping = True
        self.wake()
        self._ended.result()
        self._thread.join(JOIN_S)

    # on the loop

    async def remove(self, pipeline: Pipeline, seconds: float, removed: Callable[[], None]) -> None:
        """Closes a pipeline: sources, last windows, exporters, all within `seconds`. Calls `removed` once no drain can bring it events."""
        deadline = anyio.current_time() + seconds
        queue = self._queues[pipeline]
        queue.end()
        self._removing += 1
        self._passed.notify_all()  # a drain under way waits for no queue either
        try:
            with anyio.CancelScope(deadline=deadline - seconds * 3 / 4):
                await self.drain(final=True)  # handles the last messages for sources
        finally:
            self._removing -= 1
        with self._contained("close_sources"):
            # Even if the loop was blocked until now, each backend has a moment.
            half = max(deadline - seconds / 2, anyio.current_time() + BEGIN_CLOSING_S)
            await pipeline.close_sources(half, advancing=deadline - seconds / 4)
        # If a backend with progress used three quarters of the time, the exporters have half of the rest.
        rest = min(seconds / 4, (deadline - anyio.current_time()) / 2)
        with anyio.CancelScope(deadline=deadline - rest) as scope:
            await self._pass_all(pipeline)
        if scope.cancelled_caught:  # because of a slow exporter; the others should get all events
            queue.stop_waiting()
            with anyio.CancelScope(deadline=deadline - rest / 2) as scope:
                for _ in range(2):
                    await self.drain(final=True)
                    await self._passed.wait_for(lambda: queue.empty)
            if scope.cancelled_caught:
                with self._contained("drain_rings"):
                    self._drain_rings()  # the waiting events are counted, too
        self._pipelines.remove(pipeline)
        self._closing.append(pipeline)
        self._passed.notify_all()
        try:
            removed()
            for block in (*self._unrouted, *queue.close()):
                pipeline.drop_closed(RECORDER, block.events)  # the deadline has passed
            await pipeline.aclose(deadline)
        finally:
            self._closing.remove(pipeline)
            del self._queues[pipeline]

    async def _pass_all(self, pipeline: Pipeline) -> None:
        """Returns when the exporters of a closing profiler have all events."""
        queue = self._queues[pipeline]
        await self.drain(final=True)
        while pipeline.busy() or not queue.empty:
            if queue.empty:
                await anyio.sleep(RECHECK_S)
            await self._passed.wait_for(lambda: queue.empty)
            await self.drain()

    async def _drain_for_ever(self) -> None:
        rested = False  # nothing was recorded, and nobody woke the loop, since the drain before the last one
        while not self._stopping:
            failed = True
            with self._contained("drain"):
                timeout = RECHECK_S if await self._drain() else self._interval()
                if timeout is None:
                    rested = await self._sleep(math.inf if rested and not self._is_watching() else IDLE_S)
                else:
                    rested = False
                    await self._wait_for_wake(timeout)
                failed = False
            if failed:
                await self._wait_for_wake(AFTER_FAULT_S)
            self._wake.clear()

    async def _wait_for_wake(self, seconds: float) -> None:
        timer = self._loop.call_later(seconds, self._wake.set)
        await self._wake.wait()
        timer.cancel()

    def _is_watching(self) -> bool:
        """Whether something may happen that wakes nobody, though nothing is recorded: a process that has joined may end, the flight
        recorder's triggers look at the time, and processes may join unseen if the session cannot be watched."""
        with_triggers = any(one.flight is not None for one in self._pipelines)
        return with_triggers or self._joins.fd < 0 or self._recorder.workers.are_watched()

    async def _sleep(self, seconds: float) -> bool:
        """Waits for a wake-up while nothing is recorded. No other timer runs meanwhile. Returns whether the time is over."""
        joins = self._joins.fd
        self._signal_check.cancel()
        self._look_at_signal()  # the last drain may have taken its wake-up
        if joins >= 0:
            self._loop.add_reader(joins, self._on_join)
        try:
            with anyio.move_on_after(seconds) as waiting:
                await self._wake.wait()
        finally:
            if joins >= 0:
                self._loop.remove_reader(joins)
            self._check_signals()
        return waiting.cancelled_caught

    def _on_join(self) -> None:
        self._joins.clear()
        self._request_drain()

    def _interval(self) -> float | None:
        """Seconds until the next drain without a wake-up; `None` while nothing is recorded and nothing waits."""
        if self._recorder.late_release.waiting():
            return CROWDED_S
        if any(pipeline.is_awaited() or not self._queues[pipeline].empty for pipeline in self._pipelines):
            return min(pipeline.drain_interval for pipeline in self._pipelines) / 4
        if _core.recording() or any(pipeline.busy() for pipeline in self._pipelines):
            intervals = [pipeline.drain_interval for pipeline in self._pipelines]
            return min([*intervals, *self._recorder.workers.interval()], default=IDLE_S)
        return None

    @contextlib.contextmanager
    def _contained(self, where: str) -> Generator[None]:
        """Stores errors that concern no single profiler with all of them. The loop continues."""
        try:
            yield
        except Exception as error:
            self._faults.log(where, error)
            for pipeline in self._pipelines:
                pipeline.faults.note(where, error)
            # Last, as it strips errors that it does not retain.
            self._faults.note(where, error)

    async def drain(self, final: bool = False) -> bool:
        """Drains the rings, routes the events, and closes windows that are ready. Stores errors.

        Returns true if a change of action is in progress on another thread. Unless this is the `final` drain, events are not
        routed then, as their window is not known yet.
        """
        with self._contained("drain"):
            return await self._drain(final)
        return False

    async def _drain(self, final: bool = False) -> bool:
        async with self._draining:
            clock.wall_clock.look()
            until = self._drain_rings()
            if _core.changing(0) > 0 and not final:
                return True
            self._handle_messages()
            await self._wait(self._route(until))
            # Windows that a waiting turn will close are not closed here.
            closing = [one for one in self._pipelines if not self._queues[one].closing and one.closable()]
            if closing:
                spans = self._recorder.open_spans()
                until = self._drain_rings()
                if _core.changing(0) > 0 and not final:
                    return True
                self._handle_messages()  # a whole change may have passed meanwhile
                for block in self._unrouted:
                    # Spans that ended since they were read are complete events.
                    spans = without_ids(spans, block.events)
                await self._wait(self._route(until, closing, spans))
            for pipeline in self._pipelines:
                pipeline.answer_flushes()
            pipelines = (*self._pipelines, *self._closing)
            journals = [worker for pipeline in pipelines for worker in pipeline.workers if worker.is_journal]
            # Events that no journal has stay in the rings.
            routed = [one.routed_to for one in self._pipelines if any(worker.is_journal for worker in one.workers)]
            self._recorder.late_release.advance(self._drained_ns, min(routed, default=self._drained_ns), journals)
            return False

    def _drain_rings(self) -> int:
        until, drained = self._recorder.drain()
        self._drained_ns = until
        blocks = [DrainedBlock.of(events, args) for events, args in drained]
        self._unrouted += blocks
        count = sum(block.event_count for block in blocks)
        for pipeline in self._pipelines:
            pipeline.count_drained(count)
        with self._contained("joined processes"):
            self._recorder.workers.check()
        return until

    def _handle_messages(self) -> None:
        self._inbox_waits = False
        for pipeline in self._pipelines:
            pipeline.handle_messages()

    def _route(
        self, until: int, closing: Sequence[Pipeline] = (), open_spans: Block | None = None
    ) -> Sequence[Pipeline]:
        """Routes drained events, of which none began after `until` (ns). The ready windows of the profilers `closing` are closed
        afterwards, with the open spans. Returns the profilers that have not passed on earlier events yet."""
        # Marks come first: a block may hold events of steps whose marks are in a later one.
        marks = join_blocks([of_kind(block.events, Kind.STEP) for block in self._unrouted if block.counts.steps])
        blocks, self._unrouted = self._unrouted, []
        if len(self._pipelines) > 1:
            for block in blocks:
                block.events.flags.writeable = False  # each profiler has step numbers of its own
        behind = [pipeline for pipeline in self._pipelines if not self._queues[pipeline].empty]
        for pipeline in self._pipelines:
            self._queues[pipeline].push(marks, blocks, until, open_spans if pipeline in closing else None)
        return behind

    async def _wait(self, behind: Sequence[Pipeline]) -> None:
        """Waits for full queues. Events that are recorded meanwhile are safe in the rings.

        It waits a moment for profilers that were not `behind` before. If none is ready then, it waits until one is, a profiler
        closes, or a message arrives or rings fill up while the queues have space. So a profiler waits for the exporters of another
        one only for that moment. Without space it handles messages, but does not return, as the caller would drain more.
        """
        pipelines, queues, workers = self._pipelines, self._queues, self._recorder.workers

        def fresh() -> bool:
            return all(queues[one].empty for one in pipelines if one not in behind)

        def wanted() -> bool:
            free = not pipelines or any(queues[one].empty for one in pipelines)
            space = all(queues[one].has_room for one in pipelines)
            return bool(self._removing or free or (space and (self._inbox_waits or self._recorder.needs_drain())))

        with anyio.move_on_after(SLOW_EXPORTER_TIMEOUT_S):
            await self._passed.wait_for(lambda: self._removing or fresh() or self._recorder.needs_drain())
        while not wanted():
            with anyio.move_on_after(SLOW_EXPORTER_TIMEOUT_S):
                await self._passed.wait_for(lambda: self._inbox_waits or wanted())
            if self._inbox_waits and not wanted():
                if _core.changing(0) > 0:
                    return
                self._handle_messages()
            if workers.joined() and not any(queues[one].full for one in pipelines):  # these cannot wake the loop
                return
            crowded = self._recorder.needs_drain() or self._recorder.late_release.waiting()
            for one in pipelines:
                queues[one].mark_slow(wanted=crowded)


_shared: BackgroundCall[DrainLoop] | None = None
_previous: BackgroundCall[None] | None = None
_users = 0
_lock = RLock()
"""Held for a moment only. Reentrant, as a signal handler may interrupt a thread that holds it."""


def acquire(recorder: Recorder) -> DrainLoop:
    """Returns the drain loop of the process, and starts it if necessary. Each call needs a call of `release`.

    A drain loop is started and stopped on a separate thread. So a signal handler that interrupts a waiting caller may call this,
    too, and two drain loops never drain the recorder at once.
    """
    global _shared, _users
    with _lock:
        if _shared is None:
            _shared = BackgroundCall(_make, _previous, recorder, name="stepscope loop")
        _users += 1
        making = _shared
    try:
        return making.result()
    except BaseException:
        release()
        raise


def on_loop() -> bool:
    """Whether the caller runs on the drain loop."""
    making = _shared
    return making is not None and making.succeeded and making.result().on_loop()


def _make(before: BackgroundCall[None] | None, recorder: Recorder) -> DrainLoop:
    if before is not None:
        before.result()
    return DrainLoop(recorder)


def release() -> None:
    """Releases the drain loop. The last user stops it."""
    global _shared, _previous, _users
    stopping: BackgroundCall[None] | None = None
    with _lock:
        _users -= 1
        if _users == 0 and _shared is not None:
            stopping = _previous = BackgroundCall(_stop, _shared, name="stepscope loop")
            _shared = None
    if stopping is not None:
        stopping.result()


def _stop(making: BackgroundCall[DrainLoop]) -> None:
    try:
        loop = making.result()
    except Exception:
        return  # it did not start; the caller of `acquire` got the error
    loop.stop()


def _forked() -> None:
    """The drain loop and its thread belong to the parent."""
    global _shared, _previous, _users, _lock
    _shared, _previous, _users, _lock = None, None, 0, RLock()


os.register_at_fork(after_in_child=_forked)

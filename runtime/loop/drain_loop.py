"""The background thread with its event loop: it drains the rings into the queue of every profiler."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from typing import Any, TypeVar

import anyio

from stepscope.runtime import _core
from stepscope.runtime.accounting.error_log import InternalErrors
from stepscope.runtime.events import clock
from stepscope.runtime.events.record import Block, Kind, join_blocks, without_ids
from stepscope.runtime.events.survey import of_kind, survey
from stepscope.runtime.export.exporter_worker import PATIENCE
from stepscope.runtime.loop.backpressure import BackpressureQueue, DrainedTurn
from stepscope.runtime.loop.pipeline import Pipeline
from stepscope.runtime.loop_threads.condition import LoopCondition
from stepscope.runtime.loop_threads.loop_thread import JOIN_S, LoopThread, loop_name
from stepscope.runtime.recording.recorder import Recorder
from stepscope.runtime.sources.source import Source
from stepscope.runtime.threads import signals
from stepscope.runtime.threads.background_call import BackgroundCall
from stepscope.runtime.threads.native_threads import RLock
from stepscope.runtime.threads.one_shot import OneShot
from stepscope.runtime.threads.user_code import deliver_for
from stepscope.runtime.windows.router import RECORDER

T = TypeVar("T")

SETTLE = 0.001
"""Seconds until the drain loop looks again while a change of action is on its way to it."""
CROWDED_S = 0.01
"""Seconds until the next drain while rings are full of events that the journals have yet to write."""
AFTER_FAULT = 0.1
"""Seconds until the next drain after an internal error."""
ANSWER_S = 0.05
"""Seconds that the loop has to answer; else it is blocked."""
BEGIN_CLOSING_S = 0.05
"""Seconds that each backend has for closing at least, however late it is."""
IDLE = 5.0
"""Seconds between two drains while nothing is recorded: processes may join and end then, too."""


class DrainLoop:
    """One per process while any profiler is open. Started by the first, stopped by the last.

    Its thread is a daemon named `stepscope`; the loop is uvloop's where that is installed, else asyncio's.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._pipelines: list[Pipeline] = []
        self._queues: dict[Pipeline, BackpressureQueue] = {}
        """Before each pipeline."""
        self._leaving: list[Pipeline] = []
        """Pipelines that get no more events, and whose exporters write what is in their queues."""
        self._faults = InternalErrors("the runtime's loop")
        self._tasks: set[asyncio.Task[None]] = set()
        self._held: list[tuple[Block, bytes]] = []
        self._passed = LoopCondition()
        """Notified when a queue is empty, when a profiler comes or goes, and with each wake."""
        self._asked = False
        """Whether an inbox has a message."""
        self._woken = self._woken_later = False
        """Whether the loop was woken and has not looked since: once is enough."""
        self._turned = 0.0
        """When the loop looked last, by its clock."""
        self._removing = 0
        """Profilers that begin to close: drains wait for no exporter then."""
        self._stopping = False
        self.loop_name = loop_name()
        self._begun: OneShot[None] = OneShot()
        self._ended: OneShot[None] = OneShot()
        self._thread = LoopThread("stepscope", self._run, self._failed)
        self._begun.result()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._wake, self._draining = asyncio.Event(), anyio.Lock()
        self._look()
        self._loop.add_reader(self._recorder.wake_fd, self._called)
        self._begun.set_result(None)
        try:
            await self._drain_for_ever()
            while self._tasks:
                await asyncio.wait(self._tasks)
        finally:
            self._loop.remove_reader(self._recorder.wake_fd)
            self._looking.cancel()
            self._recorder.late_release.end()
        self._ended.set_result(None)

    def _failed(self, error: BaseException) -> None:
        self._begun.set_exception(error)
        self._ended.set_exception(error)

    def _called(self) -> None:
        """A ring is half full."""
        self._recorder.heard()
        self._look_up()

    def _ask(self) -> None:
        self._woken = self._woken_later = False  # before anything is looked at: what comes from now on wakes again
        self._asked = True
        self._turned = self._loop.time()
        self._look_up()

    def _look_up(self) -> None:
        self._wake.set()
        self._passed.notify_all()

    def _look(self) -> None:
        """Again and again, as nothing tells that the program has put a signal's handler back."""
        signals.look()
        self._looking = self._loop.call_later(signals.LOOKS, self._look)

    # from any thread

    def wake(self) -> None:
        """Makes the drain loop look at its inboxes and rings."""
        if self._woken:
            return
        self._woken = True  # before the loop is woken, which resets it when it looks
        try:
            self._loop.call_soon_threadsafe(self._ask)
        except RuntimeError:
            return  # the loop has ended: nobody is left to be woken
        except BaseException:
            self._woken = False  # a signal handler has raised: the next call wakes it
            raise

    def wake_later(self) -> None:
        """Makes the drain loop look at once if it has not done so for `Options.drain_interval`, and else when that is over.

        So small windows are sorted together: each turn takes the interpreter's lock from the program.
        """
        if self._woken or self._woken_later:
            return
        self._woken_later = True  # first, as in `wake`
        try:
            self._loop.call_soon_threadsafe(self._ask_later)
        except RuntimeError:
            return
        except BaseException:
            self._woken_later = False
            raise

    def _ask_later(self) -> None:
        interval = min((pipeline.options.drain_interval for pipeline in self._pipelines), default=0.0)
        self._loop.call_at(self._turned + interval, self._ask)

    def start(self, work: Callable[..., Awaitable[T]], *args: Any, name: str = "stepscope call") -> OneShot[T]:
        """Runs a coroutine function on the loop, when that comes to it: the caller does not wait. It fails with a
        `RuntimeError` if the loop has ended."""
        done: OneShot[T] = OneShot()

        async def run() -> None:
            try:
                done.set_result(await work(*args))
            except BaseException as error:  # the loop goes on
                done.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(lambda: self._keep(run(), name))
        except RuntimeError as error:
            done.set_exception(error)
        return done

    def _keep(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)  # the loop itself does not keep it
        task.add_done_callback(self._tasks.discard)

    def do(self, work: Callable[[], None]) -> None:
        """Calls a function on the loop and waits for it; from anywhere."""

        async def call() -> None:
            work()

        work() if self.on_loop() else self.start(call).result()

    def open(self, source: Source) -> OneShot[None]:
        """Has the backend of a source opened on its thread, if that is not open; from anywhere, and without waiting."""
        opened: OneShot[None] = OneShot()
        if self.on_loop():
            source.open_on_thread(opened)
        else:
            self._loop.call_soon_threadsafe(source.open_on_thread, opened)
        return opened

    def blocked_in(self) -> str:
        """The function of a part, such as a backend's `derive`, that the loop is inside of and does not return from, with its
        file and line; else empty.

        Takes `ANSWER_S` seconds.
        """
        answered: OneShot[None] = OneShot()
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(answered.set_result, None)
        return "" if answered.wait(ANSWER_S) else self._thread.inside()

    def on_loop(self) -> bool:
        """Whether the caller runs on the drain loop's loop."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def add(self, make: Callable[[], Pipeline]) -> Pipeline:
        """Makes a pipeline on the loop and starts it; from anywhere."""

        made: list[Pipeline] = []

        def start() -> None:
            pipeline = make()
            made.append(pipeline)
            pipeline.start()
            pipeline.expect(self._held)
            self._pipelines += made
            self._queues[pipeline] = _queue_before(pipeline)
            if any(worker.is_journal for worker in pipeline.workers):
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
        """Ends the loop and joins the thread; pipelines are closed before."""
        self._stopping = True
        self.wake()
        self._ended.result()
        self._thread.join(JOIN_S)

    # on the loop

    async def remove(self, pipeline: Pipeline, seconds: float) -> None:
        """Closes a pipeline: sources, last windows, exporters, all within `seconds`."""
        deadline = anyio.current_time() + seconds
        queue = self._queues[pipeline]
        queue.end()
        with anyio.CancelScope(deadline=deadline - seconds * 3 / 4), self._no_patience():
            await self.drain(final=True)  # what the sources have yet to be told
        with self._contained("close_sources"):
            # Also when the loop was blocked until now: each has a moment to begin.
            half = max(deadline - seconds / 2, anyio.current_time() + BEGIN_CLOSING_S)
            await pipeline.close_sources(half, advancing=deadline - seconds / 4)
        # Where a backend took three quarters of the time as it advanced, the exporters have half of the rest.
        rest = min(seconds / 4, (deadline - anyio.current_time()) / 2)
        with anyio.CancelScope(deadline=deadline - rest) as scope:
            await self._pass_all(pipeline)
        if scope.cancelled_caught:  # by an exporter that is behind; the others are to have everything
            queue.stop_waiting()
            with anyio.CancelScope(deadline=deadline - rest / 2) as scope:
                for _ in range(2):
                    await self.drain(final=True)
                    await self._passed.wait_for(lambda: queue.empty)
            if scope.cancelled_caught:
                with self._contained("take"):
                    self._take()  # what has waited in rings is counted, too
        self._pipelines.remove(pipeline)
        self._leaving.append(pipeline)
        self._passed.notify_all()
        try:
            for events, _ in (*self._held, *queue.close()):
                pipeline.drop_closed(RECORDER, events)  # the deadline came before their turn
            await pipeline.aclose(deadline)
        finally:
            self._leaving.remove(pipeline)
            del self._queues[pipeline]

    @contextlib.contextmanager
    def _no_patience(self) -> Generator[None]:
        """No drain, also one that is under way, waits for queues inside."""
        self._removing += 1
        self._passed.notify_all()
        try:
            yield
        finally:
            self._removing -= 1

    async def _pass_all(self, pipeline: Pipeline) -> None:
        """Returns when everything of a profiler that closes is with its exporters."""
        queue = self._queues[pipeline]
        await self.drain(final=True)
        while pipeline.busy() or not queue.empty:
            if queue.empty:
                await anyio.sleep(SETTLE)
            await self._passed.wait_for(lambda: queue.empty)
            await self.drain()

    async def _drain_for_ever(self) -> None:
        while not self._stopping:
            timeout = AFTER_FAULT
            with self._contained("drain"):
                timeout = SETTLE if await self._drain() else self._interval()
            with anyio.move_on_after(timeout):
                await self._wake.wait()
            self._wake.clear()

    def _interval(self) -> float:
        """Seconds to the next look without a call."""
        if self._recorder.late_release.waiting():
            return CROWDED_S
        if any(pipeline.waited_for() or not self._queues[pipeline].empty for pipeline in self._pipelines):
            return min(pipeline.options.drain_interval for pipeline in self._pipelines) / 4
        if _core.recording() or any(pipeline.busy() for pipeline in self._pipelines):
            intervals = [pipeline.options.drain_interval for pipeline in self._pipelines]
            return min([*intervals, *self._recorder.workers.interval()], default=IDLE)
        return IDLE

    @contextlib.contextmanager
    def _contained(self, where: str) -> Generator[None]:
        """What goes wrong inside, and is no one profiler's, is kept and shown by all: the loop goes on."""
        try:
            yield
        except Exception as error:
            self._faults.log(where, error)
            for pipeline in self._pipelines:
                pipeline.faults.note(where, error)
            self._faults.note(
                where, error
            )  # last: it has kept the first of all profilers, and strips what it does not keep

    async def drain(self, final: bool = False) -> bool:
        """Moves everything that is there one stage on, as far as nothing goes wrong.

        Args:
            final: what waits for a change of action is not held back.

        Returns:
            Whether a change of action is under way in another thread, so that what was drained is held back:
            which window it belongs to is not known yet.
        """
        with self._contained("drain"):
            return await self._drain(final)
        return False

    async def _drain(self, final: bool = False) -> bool:
        async with self._draining:
            clock.wall_clock.look()
            until = self._take()
            if _core.changing(0) > 0 and not final:
                return True
            self._take_messages()
            await self._wait(self._route(until))
            # Those of a turn that has yet to pass close with the spans that came with it.
            closing = [one for one in self._pipelines if not self._queues[one].closing and one.closable()]
            if closing:
                spans = self._recorder.open_spans()
                until = self._take()
                if _core.changing(0) > 0 and not final:
                    return True
                self._take_messages()  # a whole change may have passed since they were taken before
                for events, _ in self._held:
                    # What has ended since the reading comes as a whole span.
                    spans = without_ids(spans, events)
                await self._wait(self._route(until, closing, spans))
            for pipeline in self._pipelines:
                pipeline.answer_flushes()
            pipelines = (*self._pipelines, *self._leaving)
            journals = [worker for pipeline in pipelines for worker in pipeline.workers if worker.is_journal]
            # What has yet to pass on to a journal stays in the rings.
            routed = [one.routed_to for one in self._pipelines if any(worker.is_journal for worker in one.workers)]
            self._recorder.late_release.advance(min(routed, default=until), journals)
            return False

    def _take(self) -> int:
        until, blocks = self._recorder.drain()
        self._held += blocks
        for pipeline in self._pipelines:
            pipeline.expect(blocks)
        with self._contained("joined processes"):
            self._recorder.workers.check()
        return until

    def _take_messages(self) -> None:
        self._asked = False
        for pipeline in self._pipelines:
            pipeline.take_messages()

    def _route(
        self, until: int, closing: Sequence[Pipeline] = (), open_spans: Block | None = None
    ) -> Sequence[Pipeline]:
        """Routes what is held, except events that began while it was drained: steps that began then may be missing.

        Args:
            until: what began by this time, in ns, is routed.
            closing: profilers whose ready windows are closed after it.
            open_spans: the spans for these.

        Returns:
            Profilers that have yet to pass on what came before.
        """
        # A block may hold events of steps whose marks are in a later one.
        marks = join_blocks(of_kind(events, Kind.STEP) for events, _ in self._held)
        blocks: list[tuple[Block, bytes]] = []
        later: list[tuple[Block, bytes]] = []
        for events, args in self._held:
            if survey(events).last_ns > until:
                new = events["ts"] > until
                later.append((events[new], args))
                events = events[~new]
            if len(events):
                blocks.append((events, args))
        self._held = later
        behind = [pipeline for pipeline in self._pipelines if not self._queues[pipeline].empty]
        for pipeline in self._pipelines:
            self._queues[pipeline].push(marks, blocks, until, open_spans if pipeline in closing else None)
        return behind

    async def _wait(self, behind: Sequence[Pipeline]) -> None:
        """Waits for full queues, as what is recorded meanwhile is safe in the rings.

        A moment for those that were not `behind` before; then, if nobody is through, until somebody is, or a profiler asks
        for something or closes, or rings fill up while there is room here. So nobody waits for the exporters of another for
        longer than that moment.
        """
        pipelines, queues, workers = self._pipelines, self._queues, self._recorder.workers

        def fresh() -> bool:
            return all(queues[one].empty for one in pipelines if one not in behind)

        def wanted() -> bool:
            free = not pipelines or any(queues[one].empty for one in pipelines)
            room = not any(queues[one].full for one in pipelines)
            return bool(self._removing or self._asked or free or (room and self._recorder.pressing()))

        with anyio.move_on_after(PATIENCE):
            await self._passed.wait_for(lambda: self._removing or fresh() or self._recorder.pressing())
        while not wanted():
            with anyio.move_on_after(PATIENCE):
                await self._passed.wait_for(wanted)
            if workers.joined():  # these cannot call
                return
            for one in pipelines:
                queues[one].mark_slow()


def _queue_before(pipeline: Pipeline) -> BackpressureQueue:
    queue: BackpressureQueue

    async def process(turn: DrainedTurn, pace: Callable[[], Awaitable[bool]]) -> None:
        await pipeline.process(turn, queue.part_events, pace)

    deliveries, workers = pipeline.delivered, pipeline.workers
    queue = BackpressureQueue(process, pipeline.drop_closed, deliveries, workers, pipeline.options, pipeline.faults)
    return queue


_hub: BackgroundCall[DrainLoop] | None = None
_gone: BackgroundCall[None] | None = None
_users = 0
_lock = RLock()
"""Held for a moment only. Reentrant: a signal handler may come while its thread holds it."""


def acquire(recorder: Recorder) -> DrainLoop:
    """The process's drain loop, started if need be; each call is matched by one of `release`.

    A drain loop is made and stopped on threads of their own. So a signal handler that interrupts who waits for that may come
    here as well, and two hubs never drain the recorder at once.
    """
    global _hub, _users
    with _lock:
        if _hub is None:
            _hub = BackgroundCall(_make, _gone, recorder, name="stepscope hub")
        _users += 1
        making = _hub
    try:
        return making.result()
    except BaseException:
        release()
        raise


def on_loop() -> bool:
    """Whether the caller runs on the loop of the process's drain loop."""
    making = _hub
    return making is not None and making.succeeded and making.result().on_loop()


def _make(before: BackgroundCall[None] | None, recorder: Recorder) -> DrainLoop:
    if before is not None:
        before.result()
    return DrainLoop(recorder)


def release() -> None:
    """Lets go of the drain loop; the last user stops it."""
    global _hub, _gone, _users
    stopping: BackgroundCall[None] | None = None
    with _lock:
        _users -= 1
        if _users == 0 and _hub is not None:
            stopping = _gone = BackgroundCall(_stop, _hub, name="stepscope hub")
            _hub = None
    if stopping is not None:
        stopping.result()


def _stop(making: BackgroundCall[DrainLoop]) -> None:
    try:
        loop = making.result()
    except Exception:
        return  # It was never made; who asked for it was told.
    loop.stop()


def _forget() -> None:
    """In a forked child there is no loop thread: its drain loop is the parent's, and is only let go of."""
    global _hub, _gone, _users, _lock
    _hub, _gone, _users, _lock = None, None, 0, RLock()


os.register_at_fork(after_in_child=_forget)

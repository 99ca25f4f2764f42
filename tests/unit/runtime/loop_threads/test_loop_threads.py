"""Threads with a loop of their own, what they wait for, and how their tasks end."""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import pytest

from stepscope.runtime.loop_threads.condition import LoopCondition
from stepscope.runtime.loop_threads.ending_tasks import end_tasks, finish
from stepscope.runtime.loop_threads.loop_thread import MAX_WORKERS, DaemonExecutor, LoopThread, is_own
from stepscope.runtime.threads.native_threads import Thread
from tests.support.basics import ROOT, poll
from tests.support.launch import run_to_end
from tests.support.messages import refused


async def wait_for_end(thread: LoopThread) -> None:
    """Waits for the end of a thread."""
    with anyio.fail_after(30):
        await thread.change.wait_for(lambda: thread.ended)


@pytest.mark.parametrize("early", [True, False])
async def test_work_can_be_cancelled(early: bool) -> None:
    """Also before its loop has begun."""
    begun, seen = threading.Event(), list[object]()

    async def work() -> None:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            seen.append("cancelled")

    thread = LoopThread("mine", work, seen.append)
    if not early:
        await anyio.to_thread.run_sync(begun.wait)
    thread.cancel()
    await wait_for_end(thread)
    thread.cancel()
    assert seen == ["cancelled"] or early


async def test_exceptions_of_work_are_reported() -> None:
    """Nobody else would hear of it."""
    seen: list[BaseException] = []

    async def work() -> None:
        raise OSError("no")

    await wait_for_end(LoopThread("mine", work, seen.append))
    assert [str(error) for error in seen] == ["no"]


@pytest.mark.parametrize(
    "how", ["time.sleep(1000)", "await anyio.sleep_forever()", "await asyncio.to_thread(time.sleep, 1000)"]
)
def test_the_interpreter_does_not_wait(how: str) -> None:
    """The program ends, whichever call the work waits in."""
    program = f"""
import anyio, asyncio, threading, time
from stepscope.runtime.loop_threads.loop_thread import LoopThread
begun = threading.Event()
async def work():
    begun.set()
    {how}
LoopThread("mine", work, print)
begun.wait()
time.sleep(0.1)
"""
    run_to_end([sys.executable, "-c", program], timeout=60, cwd=ROOT, check=True)


async def test_worker_threads_of_anyio_belong_to_their_loop() -> None:
    """Those of a loop of the runtime are its own, those of the program's loop are not."""
    found: list[tuple[threading.Thread, bool]] = []

    def look() -> None:
        thread = threading.current_thread()
        found.append((thread, is_own(thread)))

    async def work() -> None:
        await anyio.to_thread.run_sync(look)

    await wait_for_end(LoopThread("mine", work, print))
    await work()
    assert [own for _, own in found] == [True, False]
    assert not found[0][0].name.startswith("stepscope")


async def test_threads_of_the_executor_are_used_again() -> None:
    """One call after another needs one thread; many at once get as many as there are, and all are done."""
    loop, executor = asyncio.get_running_loop(), DaemonExecutor()
    names = {await loop.run_in_executor(executor, threading.get_ident) for _ in range(20)}
    assert len(names) < 10  # a thread may not have become idle before the next call
    barrier = threading.Barrier(MAX_WORKERS)
    idents = await asyncio.gather(*[loop.run_in_executor(executor, _meet, barrier) for _ in range(5 * MAX_WORKERS)])
    assert len(set(idents)) == MAX_WORKERS
    with pytest.raises(ZeroDivisionError):
        await loop.run_in_executor(executor, lambda: 1 / 0)
    executor.shutdown()
    await poll(lambda: not any(thread.name == "stepscope worker" for thread in threading.enumerate()))


def _meet(barrier: threading.Barrier) -> int:
    barrier.wait(30)
    return threading.get_ident()


def test_an_executor_outlives_a_system_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that was refused is never called later; the next caller is served."""
    begin = Thread.start
    full = True

    def start(thread: threading.Thread) -> None:
        if full:
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(Thread, "start", start)
    executor, done = DaemonExecutor(), list[str]()
    for _ in range(2 * MAX_WORKERS):
        with pytest.raises(RuntimeError):
            executor.submit(done.append, "refused")
    full = False
    executor.submit(done.append, "first").result(30)
    full = True
    gate = threading.Event()
    waits = executor.submit(gate.wait, 30)
    later = [executor.submit(done.append, "later") for _ in range(3)]  # for the one thread that there is
    gate.set()
    assert waits.result(30)
    for each in later:
        each.result(30)
    assert done == ["first", *["later"] * 3]
    assert len(executor.threads) == 1
    executor.shutdown()
    for thread in executor.threads:
        thread.join(30)


async def test_no_change_made_by_another_thread_is_missed() -> None:
    """A thousand changes, each reported right when the waiting for it begins."""
    change, value = LoopCondition(), 0
    turn = threading.Semaphore(0)

    def count() -> None:
        nonlocal value
        for number in range(1, 1001):
            turn.acquire()
            value = number
            change.notify_all()

    thread = threading.Thread(target=count)
    thread.start()
    with anyio.fail_after(60):
        for number in range(1, 1001):
            turn.release()
            await change.wait_for(lambda number=number: value >= number)  # type: ignore[misc]
    thread.join()


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts how often another thread woke it."""

    woken = 0

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        """As the base."""
        self.woken += 1
        return super().call_soon_threadsafe(callback, *args, context=context)


def test_a_loop_that_has_not_looked_yet_is_woken_once() -> None:
    """A hundred changes in a row wake a thread once: each time costs a system call and a switch of threads."""
    change, loop = LoopCondition(), CountingLoop()
    reached = 0

    async def wait() -> int:
        nonlocal reached
        waiting = asyncio.ensure_future(change.wait_for(lambda: reached >= 100))
        await asyncio.sleep(0)
        before = loop.woken
        for reached in range(1, 101):  # noqa: B007
            change.notify_all()
        await waiting
        return loop.woken - before

    try:
        assert loop.run_until_complete(wait()) == 1
    finally:
        loop.close()


class LastMoment(selectors.DefaultSelector):
    """Calls a function once when the loop is about to sleep, as a garbage collection may call a finalizer then."""

    def __init__(self, finalizer: Callable[[], None]) -> None:
        super().__init__()
        self._finalizers = [finalizer]

    def select(self, timeout: float | None = None) -> Any:
        """As the base."""
        if timeout is None and self._finalizers:
            self._finalizers.pop()()
        return super().select(timeout)


def test_a_finalizer_that_notifies_wakes_the_loop_that_goes_to_sleep() -> None:
    """It runs on the loop's own thread, but outside of its tasks. Nothing else would wake the loop later."""
    change, called = LoopCondition(), list[bool]()
    ended = threading.Event()

    def finalize() -> None:
        called.append(True)
        change.notify_all()

    def run() -> None:
        loop = asyncio.SelectorEventLoop(LastMoment(finalize))
        loop.run_until_complete(change.wait_for(lambda: called))
        loop.close()
        ended.set()

    threading.Thread(target=run, daemon=True).start()
    assert ended.wait(20)


def test_a_loop_that_has_ended_is_called_in_vain() -> None:
    """Telling never raises."""
    change = LoopCondition()

    async def wait() -> None:
        await change.wait_for(lambda: False)

    loop = asyncio.new_event_loop()
    task = loop.create_task(wait())
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    change.notify_all()
    task.get_coro().close()
    change.notify_all()


async def test_a_cancellation_that_is_swallowed() -> None:
    """The loop of a task goes on after the first two; the third ends it. Others end at once, also those that raise."""
    swallowed = 0

    async def stubborn() -> None:
        nonlocal swallowed
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                if swallowed == 2:
                    raise
                swallowed += 1

    async def raising() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            raise ValueError("mine") from None

    tasks = [asyncio.create_task(work()) for work in (stubborn, raising)]
    await asyncio.sleep(0)
    await end_tasks(*tasks)
    assert swallowed == 2 and tasks[0].cancelled()
    assert isinstance(tasks[1].exception(), ValueError)
    await end_tasks()


async def impatiently(work: Coroutine[Any, Any, object]) -> asyncio.Task[object]:
    """Cancels something at each turn of the loop until it has ended."""
    task = asyncio.create_task(work)
    while not task.done():
        await asyncio.sleep(0)
        task.cancel()
    return task


async def test_the_task_that_ends_others_is_cancelled() -> None:
    """It returns no earlier for that: tasks that take their time have ended."""
    ended = asyncio.Event()

    async def slow() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            for _ in range(5):
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.001)
            ended.set()

    task = asyncio.create_task(slow())
    await asyncio.sleep(0)
    assert (await impatiently(end_tasks(task))).cancelled()
    assert task.done() and ended.is_set()


async def test_finished_work_is_not_left_half_done() -> None:
    """A waiting task may be cancelled as often as one likes: the work ends, and the cancellation comes then."""
    steps: list[int] = []

    async def work() -> int:
        for number in range(5):
            await asyncio.sleep(0.001)
            steps.append(number)
        return len(steps)

    assert await finish(work(), 60) == 5
    assert (await impatiently(finish(work(), 60))).cancelled()
    assert len(steps) == 10


async def test_work_that_takes_too_long_is_cancelled() -> None:
    """Work that takes too long has ended, too; its exception is raised, also for a cancelled caller."""
    ended = asyncio.Event()

    async def endless() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    async def failing() -> None:
        await asyncio.sleep(0.001)
        raise ValueError("mine")

    with refused(TimeoutError, "0.01 s"):
        await finish(endless(), 0.01)
    assert ended.is_set()
    with pytest.raises(ValueError, match="mine"):
        await finish(failing(), 60)
    with pytest.raises(asyncio.CancelledError) as caught:
        await (await impatiently(finish(failing(), 60)))
    assert isinstance(caught.value.__cause__, ValueError)

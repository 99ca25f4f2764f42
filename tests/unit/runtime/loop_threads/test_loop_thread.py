"""A thread with a loop of its own: it ends by itself, and the interpreter never waits for it."""

from __future__ import annotations

import asyncio
import sys
import threading

import anyio
import anyio.lowlevel
import pytest

from stepscope.runtime.loop_threads.loop_thread import MAX_WORKERS, DaemonExecutor, LoopThread, is_own
from stepscope.runtime.threads.native_threads import Thread
from tests.support.basics import ROOT, poll
from tests.support.launch import run_to_end


async def ended(thread: LoopThread) -> None:
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
    await ended(thread)
    thread.cancel()
    assert seen == ["cancelled"] or early


async def test_what_work_raises_is_reported() -> None:
    """Nobody else would hear of it."""
    seen: list[BaseException] = []

    async def work() -> None:
        raise OSError("no")

    await ended(LoopThread("mine", work, seen.append))
    assert [str(error) for error in seen] == ["no"]


@pytest.mark.parametrize(
    "how", ["time.sleep(1000)", "await anyio.sleep_forever()", "await asyncio.to_thread(time.sleep, 1000)"]
)
def test_the_interpreter_does_not_wait(how: str) -> None:
    """Whatever the work does when the program ends."""
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

    await ended(LoopThread("mine", work, print))
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
    """Who is told that there is none need not fear that its call is made later; who comes then is served."""
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

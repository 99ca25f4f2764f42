"""A change: no call is missed, from whatever thread it comes, and a loop that has ended disturbs nobody."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import anyio

from stepscope.runtime.loop_threads.condition import LoopCondition


async def test_no_change_made_by_another_thread_is_missed() -> None:
    """A thousand changes, each told right when the waiting for it begins."""
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

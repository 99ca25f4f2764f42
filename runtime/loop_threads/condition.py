"""A condition variable across event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stepscope.runtime.threads import locks


class _Waiter:
    """One `wait_for`: its loop, and whether that was woken since the condition was last checked."""

    __slots__ = ("event", "loop", "woken")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.event = asyncio.Event()
        self.woken = False

    def wake(self) -> None:
        """Wakes the loop once until it checks the condition: each wake-up costs a system call and a switch of threads."""
        if self.woken:
            return
        self.woken = True  # before the loop wakes, as it resets this
        try:
            self.loop.call_soon_threadsafe(self.event.set)
        except RuntimeError:
            return  # the loop has ended
        except BaseException:
            self.woken = False  # a signal handler raised: the next call wakes the loop
            raise


class LoopCondition:
    """Coroutines on any loop wait for a condition; any thread notifies them. `notify_all` never fails, and is cheap if nothing
    waits."""

    def __init__(self) -> None:
        self._waiting: set[_Waiter] = set()
        self._lock = locks.reentrant()

    def notify_all(self) -> None:
        """Makes all waiting coroutines check their conditions again. Any thread may call."""
        if self._waiting:
            with self._lock:
                waiting = list(self._waiting)
            for waiter in waiting:
                waiter.wake()

    async def wait_for(self, condition: Callable[[], object]) -> None:
        """Returns when `condition()` is true. Checks it at once, and after each `notify_all()`."""
        me = _Waiter(asyncio.get_running_loop())
        with self._lock:
            self._waiting.add(me)
        try:
            while True:
                me.woken = False  # before the check: a change after it wakes the loop again
                if condition():
                    return
                await me.event.wait()
                me.event.clear()
        finally:
            with self._lock:
                self._waiting.discard(me)

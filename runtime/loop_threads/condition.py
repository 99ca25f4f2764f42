"""A change: what one thread waits for on its loop, and another tells of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stepscope.runtime.threads import locks


class _Waiter:
    """One `wait_for`: its loop, and whether that was woken since it last looked at the condition."""

    __slots__ = ("event", "loop", "woken")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.event = asyncio.Event()
        self.woken = False

    def wake(self) -> None:
        """Wakes the loop, once: a system call and a switch of threads each time would cost more than the work."""
        if self.woken:
            return
        self.woken = True  # before the loop is woken, which resets it when it looks
        try:
            self.loop.call_soon_threadsafe(self.event.set)
        except RuntimeError:
            return  # that loop has ended: nobody waits there any more
        except BaseException:
            self.woken = False  # a signal handler has raised: the next call wakes it
            raise


class LoopCondition:
    """A condition across event loops. Telling costs next to nothing while nobody waits, and never fails."""

    def __init__(self) -> None:
        self._waiting: set[_Waiter] = set()
        self._lock = locks.reentrant()

    def notify_all(self) -> None:
        """Makes those who wait look again; from any thread."""
        if self._waiting:
            with self._lock:
                waiting = list(self._waiting)
            for waiter in waiting:
                waiter.wake()

    async def wait_for(self, condition: Callable[[], object]) -> None:
        """Returns when `condition()` is true. It is asked at once, and after each `tell()`."""
        me = _Waiter(asyncio.get_running_loop())
        with self._lock:
            self._waiting.add(me)
        try:
            while True:
                me.woken = False  # before the condition is asked: a change after that wakes again
                if condition():
                    return
                await me.event.wait()
                me.event.clear()
        finally:
            with self._lock:
                self._waiting.discard(me)

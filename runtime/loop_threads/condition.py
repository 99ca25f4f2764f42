"""Wakes event loops, and a condition variable across them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stepscope.runtime.threads import locks
from stepscope.runtime.threads.native_threads import get_ident, on_main_thread


class WakeUp:
    """Calls a function on a loop. Any thread may call `set`, often: the loop is woken once until `pending` is reset there, as
    each wake-up costs a system call and a switch of threads. It must be made on the loop."""

    __slots__ = ("_call", "_loop", "_thread", "pending")

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
        self._loop, self._call = loop, call
        # A loop that runs here needs no system call. But on the main thread, a signal handler may call while the loop sleeps.
        self._thread = 0 if on_main_thread() else get_ident()
        self.pending = False

    def set(self) -> None:
        """Wakes the loop. No effect if it has ended."""
        if self.pending:
            return
        self.pending = True  # before the loop wakes, as it resets this
        try:
            # Out of a task, a finalizer may call after the loop has chosen how long it sleeps.
            if get_ident() == self._thread and asyncio.current_task(self._loop) is not None:
                self._loop.call_soon(self._call)
            else:
                self._loop.call_soon_threadsafe(self._call)
        except RuntimeError:
            return  # the loop has ended
        except BaseException:
            self.pending = False  # a signal handler raised: the next call wakes the loop
            raise


class LoopCondition:
    """Coroutines on any loop wait for a condition; any thread notifies them. `notify_all` never fails, and is cheap if nothing
    waits."""

    def __init__(self) -> None:
        self._waiting: set[WakeUp] = set()
        self._lock = locks.reentrant()

    def notify_all(self) -> None:
        """Makes all waiting coroutines check their conditions again. Any thread may call."""
        if self._waiting:
            with self._lock:
                waiting = list(self._waiting)
            for waiter in waiting:
                waiter.set()

    async def wait_for(self, condition: Callable[[], object]) -> None:
        """Returns when `condition()` is true. Checks it at once, and after each `notify_all()`."""
        event = asyncio.Event()
        me = WakeUp(asyncio.get_running_loop(), event.set)
        with self._lock:
            self._waiting.add(me)
        try:
            while True:
                me.pending = False  # before the check: a change after it wakes the loop again
                if condition():
                    return
                await event.wait()
                event.clear()
        finally:
            with self._lock:
                self._waiting.discard(me)

"""A change: what one thread waits for on its loop, and another tells of."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from stepscope.runtime import locks


class Change:
    """A condition across event loops. Telling costs next to nothing while nobody waits, and never fails."""

    def __init__(self) -> None:
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._lock = locks.reentrant()

    def tell(self) -> None:
        """Makes those who wait look again; from any thread."""
        if self._waiting:
            with self._lock:
                waiting = list(self._waiting)
            for loop, event in waiting:
                with contextlib.suppress(RuntimeError):  # that loop has ended: nobody waits there any more
                    loop.call_soon_threadsafe(event.set)

    async def wait_for(self, condition: Callable[[], object]) -> None:
        """Returns when `condition()` is true. It is asked at once, and after each `tell()`."""
        event = asyncio.Event()
        me = (asyncio.get_running_loop(), event)
        with self._lock:
            self._waiting.add(me)
        try:
            while not condition():
                await event.wait()
                event.clear()
        finally:
            with self._lock:
                self._waiting.discard(me)

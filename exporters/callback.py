"""`on_trace_ready`: a user's callable as an exporter."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import cast

from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.export.run import Run
from stepscope.runtime.loop_threads.loop_thread import call_in_thread
from stepscope.runtime.threads.user_code import run, run_async
from stepscope.runtime.windows.window import Window, WindowCallback


class CallbackExporter:
    """Calls a function with each finished window, once the window can be exported.

    A coroutine function runs on the exporter's own loop, anything else on a worker thread. Calls do not overlap.
    The profiler stores its exceptions, as for every exporter.
    """

    name = "on_trace_ready"

    def __init__(self, callback: WindowCallback, ready: Callable[[Window], Awaitable[Window]]) -> None:
        """Args: the function; what to await for the window that it gets."""
        self._callback = callback
        self._ready = ready

    async def open(self, run: Run) -> None:
        pass

    async def export(self, batch: EventBatch) -> None:
        pass

    async def close_window(self, window: Window) -> None:
        window = await self._ready(window)
        if inspect.iscoroutinefunction(self._callback) or inspect.iscoroutinefunction(
            getattr(self._callback, "__call__", None)  # noqa: B004 - an object whose __call__ is a coroutine function
        ):
            await run_async(lambda: cast(Awaitable[object], self._callback(window)))
            return
        result = await call_in_thread(run, self._callback, window)
        if inspect.isawaitable(result):
            await run_async(lambda: result)

    async def aclose(self) -> None:
        pass

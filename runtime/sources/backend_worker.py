"""The worker of one backend: the thread of its calls and coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

import anyio

from stepscope.runtime.loop_threads.condition import LoopCondition
from stepscope.runtime.loop_threads.ending_tasks import end_tasks
from stepscope.runtime.loop_threads.loop_thread import LoopThread
from stepscope.runtime.threads.user_code import CANCEL_TIMEOUT_S


class BackendWorker:
    """Calls one backend on its own thread and event loop, one call after the other.

    A backend that blocks loses its own events only. The thread starts with the first call; before each, `enter` sets the context
    variables of the backend. `failed` is called with the reason if the thread or its loop cannot start. All methods but `join` are
    called on the drain loop. Only the coroutine functions wait.
    """

    def __init__(self, name: str, enter: Callable[[], object], failed: Callable[[BaseException], object]) -> None:
        self.closed = True
        """Whether the thread does not run, before the first call or after closing."""
        self._name, self._enter, self._on_failure = name, enter, failed
        self._thread: LoopThread | None = None
        self._change = LoopCondition()
        """Notified when it is closed."""
        self._posted = self._begun = 0
        self._ending = self._late = False
        self._close_requested = asyncio.Event()
        self._close: Callable[[], Awaitable[None]]
        self._closing: anyio.CancelScope | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def waiting(self) -> int:
        """Number of calls that have not begun. Any thread may read it."""
        return self._posted - self._begun

    def call(self, what: Callable[[], object]) -> bool:
        """Calls a function after the previous ones.

        Returns:
            Whether it will be called: not after `close`, nor without a thread.
        """
        if self._ending:
            return False
        if self.closed:
            self.closed = False
            try:
                self._thread = LoopThread(f"stepscope {self._name}", self._run, self._failed)
            except RuntimeError as error:
                self._failed(error)
                return False
        self._post(what)
        return True

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs a coroutine function concurrently with the calls, until it ends or the backend is closed."""
        self.call(partial(self._start_task, work))

    async def close(self, close: Callable[[], Awaitable[None]]) -> None:
        """Awaits a coroutine function as the last call. Then cancels spawned tasks, and ends the thread."""
        self._close = close
        self.call(self._close_requested.set)
        self._ending = True
        await self._wait_closed()

    async def cancel(self) -> str:
        """Cancels the last call, which has a moment to end. If it has not begun, it has that moment later.

        Returns:
            The function that blocks the thread, with its file and line; empty if there is none.
        """
        self._post(self._cancel)
        with anyio.move_on_after(CANCEL_TIMEOUT_S + 0.05):
            await self._wait_closed()
        return "" if self.closed or self._thread is None else self._thread.inside()

    def join(self, seconds: float) -> None:
        """Waits for the end of the thread of a closed backend, at most `seconds`. Must not be called on a loop."""
        if self._thread is not None and self.closed:
            self._thread.join(seconds)

    def _post(self, what: Callable[[], object]) -> None:
        self._posted += 1
        if self._thread is not None:
            self._thread.call(partial(self._call, what))

    async def _wait_closed(self) -> None:
        await self._change.wait_for(lambda: self.closed)

    def _failed(self, error: BaseException) -> None:
        self._set_closed()
        self._on_failure(error)

    def _set_closed(self) -> None:
        self.closed = True
        self._change.notify_all()

    # on the thread

    async def _run(self) -> None:
        await self._close_requested.wait()
        with anyio.CancelScope() as self._closing:
            if self._late:
                self._closing.deadline = anyio.current_time() + CANCEL_TIMEOUT_S
            self._enter()
            await self._close()
        self._set_closed()
        await end_tasks(*self._tasks)

    def _call(self, what: Callable[[], object]) -> None:
        self._begun += 1
        self._enter()
        what()

    def _start_task(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = asyncio.get_running_loop().create_task(work())
        self._tasks.add(task)  # the loop has only a weak reference
        task.add_done_callback(self._tasks.discard)

    def _cancel(self) -> None:
        self._late = True
        if self._closing is not None:
            self._closing.cancel()

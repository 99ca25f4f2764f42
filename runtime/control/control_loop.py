"""The control thread with its event loop: one for the process, while a file is watched or a socket is open."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
from collections.abc import Callable, Coroutine
from typing import Any

from stepscope.runtime.accounting.error_log import error_text
from stepscope.runtime.loop_threads.ending_tasks import end_tasks
from stepscope.runtime.loop_threads.loop_thread import LoopThread
from stepscope.runtime.threads.native_threads import RLock
from stepscope.runtime.threads.one_shot import OneShot

log = logging.getLogger("stepscope")

JOIN_S = 1.0
"""Seconds that `end` waits for the thread, at most. It is a daemon, so it may also run on."""


class ControlLoop:
    """A daemon thread named `stepscope control`. It runs whether or not a profiler records.

    Raises:
        RuntimeError: if the system gives no further thread.
    """

    def __init__(self) -> None:
        self._ready: OneShot[asyncio.AbstractEventLoop] = OneShot()
        self._stop: asyncio.Event | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = LoopThread("stepscope control", self._main, self._failed)

    async def _main(self) -> None:
        self._stop = asyncio.Event()
        self._ready.set_result(asyncio.get_running_loop())
        await self._stop.wait()
        await end_tasks(*self._tasks)

    def _failed(self, error: BaseException) -> None:
        self._ready.set_exception(error)
        _log(error)

    def start(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> Callable[[], None]:
        """Runs an async function on the loop. Returns a function that cancels it, for any thread."""
        loop = self._ready.result()
        begun: list[asyncio.Task[None]] = []

        def begin() -> None:
            task = loop.create_task(work(), name=f"stepscope {name}")
            self._tasks.add(task)
            begun.append(task)

            def finished(task: asyncio.Task[None]) -> None:
                self._tasks.discard(task)
                if not task.cancelled() and (error := task.exception()) is not None:
                    _log(error)

            task.add_done_callback(finished)

        def cancel() -> None:
            for task in begun:
                task.cancel()

        loop.call_soon_threadsafe(begin)
        return lambda: self.call_soon(cancel)

    def call_soon(self, call: Callable[[], object]) -> None:
        """Calls a function on the loop. No effect if the loop has ended."""
        with contextlib.suppress(RuntimeError):
            self._ready.result().call_soon_threadsafe(call)

    def end(self) -> None:
        """Cancels all tasks, and waits `JOIN_S` for the thread."""
        stop = self._stop
        if stop is not None:
            self.call_soon(stop.set)
        if not self.here:
            self._thread.join(JOIN_S)

    @property
    def here(self) -> bool:
        """Whether the caller is on the loop's thread."""
        try:
            return self._ready.done and asyncio.get_running_loop() is self._ready.result()
        except RuntimeError:
            return False


def _log(error: BaseException) -> None:
    log.error("control failed: %s", error_text(error), exc_info=error)


_loop: ControlLoop | None = None
_users = 0
_lock = RLock()


def acquire() -> ControlLoop:
    """Returns the process's loop, and starts it if needed. Each call needs a matching call of `release`.

    Raises:
        RuntimeError: if the system gives no further thread.
    """
    global _loop, _users
    with _lock:
        if _loop is None:
            _loop = ControlLoop()
        _users += 1
        return _loop


def release(loop: ControlLoop) -> None:
    """Releases the loop. The last user ends it. No effect on the loop of a parent process."""
    global _loop, _users
    ending: ControlLoop | None = None
    with _lock:
        if loop is not _loop:
            return
        _users -= 1
        if _users == 0:
            ending, _loop = _loop, None
    if ending is not None:
        ending.end()


def _end() -> None:
    """At the interpreter's exit, before its daemon threads are stopped wherever they are."""
    global _loop
    ending, _loop = _loop, None
    if ending is not None:
        ending.end()


def _forget() -> None:
    """Forgets the loop in a forked child, where its thread does not exist."""
    global _loop, _users, _lock
    _loop, _users, _lock = None, 0, RLock()


atexit.register(_end)
os.register_at_fork(after_in_child=_forget)

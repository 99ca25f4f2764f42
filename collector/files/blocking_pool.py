"""Threads for what the disk may hold up, and work that continues when its caller is cancelled.

A file system that hangs costs so many threads, and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from stepscope.collector.errors import StuckError
from stepscope.runtime.loop_threads.ending_tasks import finish
from stepscope.runtime.threads.background_call import start

T = TypeVar("T")

PATIENCE = 5.0
"""Seconds that `try_run` waits, and that a cancelled caller waits for work that has begun."""
WAITING = 64
"""Calls that may wait for a thread when another one is made with `try_run`."""

log = logging.getLogger("stepscope.collector")


class BlockingPool:
    """Does what may wait for the disk, never on the loop: what came first first, on a few threads at most.

    A thread is there while there is something to do, and keeps no interpreter from ending.
    """

    def __init__(self, threads: int) -> None:
        """Args: at most."""
        self._most = threads
        self._guard = threading.Lock()
        self._threads = 0
        self._jobs: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    @property
    def waiting(self) -> int:
        """Calls for which there is no thread yet."""
        return len(self._jobs)

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Queues a function, from any thread. If the system has no thread for it, the result is a `StuckError`."""
        future: Future[T] = Future()
        with self._guard:
            self._jobs.append((future, work))
            more = self._threads < self._most
            self._threads += more
        if more:
            try:
                start(threading.Thread(target=self._work, name="stepscope disk", daemon=True))
            except RuntimeError as error:
                self._fail(error)
        return future

    async def run(self, work: Callable[[], T], undo: Callable[[T], object] = lambda _: None) -> T:
        """Runs a function on a thread; returns its result. A cancelled caller still waits for it, unless the disk hangs, and the
        result is undone.

        The caller bounds the number of calls that wait, such as one for each connection.
        """
        future = asyncio.wrap_future(self.submit(work))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            with contextlib.suppress(TimeoutError):
                await finish(self._undone(future, undo), PATIENCE)
            raise

    async def try_run(self, work: Callable[[], T], undo: Callable[[T], object] = lambda _: None) -> T:
        """Runs a function on a thread; returns its result if that comes soon. Else, or if the caller is cancelled, the result is undone.

        Raises:
            StuckError: if the disk does not answer in `PATIENCE` seconds, or too many wait for it already.
        """
        if self.waiting >= WAITING:
            raise StuckError("too many wait for the disk; try again later")
        future = self.submit(work)
        limit = asyncio.timeout(PATIENCE)
        try:
            async with limit:
                return await asyncio.wrap_future(future)
        except BaseException:
            if not future.cancel():  # it has begun
                future.add_done_callback(lambda done: _undo(done, undo))
            if limit.expired():
                raise StuckError("the disk does not answer; try again later") from None
            raise

    async def _undone(self, future: asyncio.Future[T], undo: Callable[[T], object]) -> None:
        await asyncio.wait({future})
        if not future.cancelled() and future.exception() is None:
            made = future.result()
            await self.run(lambda: undo(made))

    def _work(self) -> None:
        while True:
            with self._guard:
                if not self._jobs:
                    self._threads -= 1
                    return
                future, work = self._jobs.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)
            del future, work  # what it made is not held while there is nothing to do

    def _fail(self, error: RuntimeError) -> None:
        """A thread could not be started: work that waits is refused, unless other threads do it."""
        with self._guard:
            self._threads -= 1
            unfinished = [] if self._threads else list(self._jobs)
            if unfinished:
                self._jobs.clear()
        for future, _ in unfinished:
            if future.set_running_or_notify_cancel():
                future.set_exception(StuckError(f"there is no thread for the disk: {error}"))


def _undo(done: Future[T], undo: Callable[[T], object]) -> None:
    if done.exception() is None:
        undo(done.result())


async def uncancelled(work: asyncio.Future[T]) -> T:
    """Returns the result of a task or future. A cancelled caller waits for `PATIENCE` more seconds, and the task continues."""
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await _wait_longer(work)
        raise


@contextlib.asynccontextmanager
async def in_own_task(manager: AbstractAsyncContextManager[T], over: Callable[[], object]) -> AsyncGenerator[T]:
    """Enters and leaves a context manager in a task of its own; yields its value.

    A cancelled caller waits for `PATIENCE` more seconds, and the task continues.

    Args:
        manager: does not see exceptions of the caller's block.
        over: called after its exit, or when it could not be entered.
    """
    entered: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    exit_requested = asyncio.Event()
    task = asyncio.create_task(_enter_and_exit(manager, entered, exit_requested))
    task.add_done_callback(lambda _: over())
    either: set[asyncio.Future[Any]] = {entered, task}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if entered.done():
            yield entered.result()
    except asyncio.CancelledError:
        exit_requested.set()
        await _wait_longer(task)
        raise
    except BaseException:
        exit_requested.set()
        task.add_done_callback(_log_error)
        await asyncio.wait({task})
        raise
    exit_requested.set()
    await uncancelled(task)


async def _enter_and_exit(
    manager: AbstractAsyncContextManager[T], entered: asyncio.Future[T], exit_requested: asyncio.Event
) -> None:
    stack = contextlib.AsyncExitStack()
    entered.set_result(await stack.enter_async_context(manager))
    try:
        await exit_requested.wait()
    except asyncio.CancelledError:  # the loop ends
        with contextlib.suppress(TimeoutError):
            await finish(stack.aclose(), PATIENCE)
        raise
    await stack.aclose()


async def _wait_longer(task: asyncio.Future[Any]) -> None:
    """Waits a little longer for a future, and then leaves it."""
    task.add_done_callback(_log_error)
    with contextlib.suppress(TimeoutError):
        await finish(asyncio.wait({task}), PATIENCE)


def _log_error(task: asyncio.Future[Any]) -> None:
    """Logs an error that no caller sees."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("nobody waits for it any more: %s", error)

"""Work that continues when its caller is cancelled, as it must not be left half done. It takes as long as a disk hangs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from stepscope.collector.files.blocking_pool import PATIENCE
from stepscope.runtime.loop_threads.ending_tasks import finish

T = TypeVar("T")

log = logging.getLogger("stepscope.collector")


async def uncancelled(work: asyncio.Future[T]) -> T:
    """Returns the result of a task or future. A cancelled caller waits for `PATIENCE` more seconds, and the task continues."""
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await _wait_longer(work)
        raise


@contextlib.asynccontextmanager
async def uncancelled_context(manager: AbstractAsyncContextManager[T], over: Callable[[], object]) -> AsyncGenerator[T]:
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
    """Waits for it a little longer, and leaves it."""
    task.add_done_callback(_log_error)
    with contextlib.suppress(TimeoutError):
        await finish(asyncio.wait({task}), PATIENCE)


def _log_error(task: asyncio.Future[Any]) -> None:
    """Nobody else sees what it raises."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("nobody waits for it any more: %s", error)

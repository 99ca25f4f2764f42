"""Cancels asyncio tasks reliably, and finishes work that must not be interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

CANCEL_AGAIN_S = 0.5
"""Seconds after which a task that still runs is cancelled again."""


async def end_tasks(*tasks: asyncio.Task[Any] | asyncio.Future[Any]) -> None:
    """Cancels tasks and returns when all have ended, even if the caller is cancelled meanwhile. Ignores their exceptions.

    A task is cancelled again every `CANCEL_AGAIN_S` seconds, as a cancellation can get lost: `asyncio.wait_for` of Python 3.11
    returns a result that comes at the same moment, and some libraries replace the exception. A task that needs longer for its
    cleanup is interrupted in it: do such cleanup in `finish`.

    Raises:
        asyncio.CancelledError: if the caller was cancelled, after all tasks have ended.
    """
    pending = {task for task in tasks if not task.done()}
    cancelled: asyncio.CancelledError | None = None
    while pending:
        for task in pending:
            task.cancel()
        try:
            await asyncio.wait(pending, timeout=CANCEL_AGAIN_S)
        except asyncio.CancelledError as error:
            cancelled = error
        pending = {task for task in pending if not task.done()}
    if cancelled is not None:
        raise cancelled


async def finish(work: Coroutine[Any, Any, T] | asyncio.Future[T], seconds: float) -> T:
    """Awaits work that continues if the caller is cancelled, and returns its result. After `seconds` it is cancelled all the same.

    Raises:
        TimeoutError: if it took too long.
        asyncio.CancelledError: if the caller was cancelled, after the work has ended.
    """
    task = asyncio.ensure_future(work)
    clock = asyncio.get_running_loop().time
    end = clock() + seconds
    cancelled: asyncio.CancelledError | None = None
    while not task.done() and (remaining := end - clock()) > 0:
        try:
            await asyncio.wait({task}, timeout=remaining)
        except asyncio.CancelledError as error:
            cancelled = error
    late = not task.done()
    if late:
        try:
            await end_tasks(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        # The exception of the work becomes the cause, so that it is not lost.
        raise cancelled from (None if task.cancelled() else task.exception())
    if late:
        raise TimeoutError(f"it was not done in {seconds:g} s")
    return task.result()

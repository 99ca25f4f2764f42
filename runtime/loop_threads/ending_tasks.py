"""Ends tasks of asyncio for certain, and has what must not be left half done finished."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

AGAIN = 0.5
"""Seconds after which a task that goes on is cancelled once more."""


async def end_tasks(*tasks: asyncio.Task[Any] | asyncio.Future[Any]) -> None:
    """Cancels tasks and returns when they have ended, also if this is cancelled meanwhile; what they raise is theirs.

    One cancellation may be swallowed: `asyncio.wait_for` of Python 3.11 returns the result instead if that comes at the same
    moment, and libraries make errors of their own of it. A task that works in a loop would go on for ever then. A task that
    takes longer to end is cancelled while it does so: what it must not leave half done belongs into `finish`.

    Raises:
        asyncio.CancelledError: if this was cancelled; no task goes on then, either.
    """
    left = {task for task in tasks if not task.done()}
    cancelled: asyncio.CancelledError | None = None
    while left:
        for task in left:
            task.cancel()
        try:
            await asyncio.wait(left, timeout=AGAIN)
        except asyncio.CancelledError as error:
            cancelled = error
        left = {task for task in left if not task.done()}
    if cancelled is not None:
        raise cancelled


async def finish(work: Coroutine[Any, Any, T] | asyncio.Future[T], seconds: float) -> T:
    """What something gives that goes on however often this is cancelled meanwhile, but not for ever.

    Args:
        work: what is not to be left half done.
        seconds: after which it is cancelled.

    Raises:
        TimeoutError: if it was cancelled as it took too long.
        asyncio.CancelledError: if this was cancelled meanwhile: when it has ended.
    """
    task = asyncio.ensure_future(work)
    clock = asyncio.get_running_loop().time
    end = clock() + seconds
    cancelled: asyncio.CancelledError | None = None
    while not task.done() and (left := end - clock()) > 0:
        try:
            await asyncio.wait({task}, timeout=left)
        except asyncio.CancelledError as error:
            cancelled = error
    late = not task.done()
    if late:
        try:
            await end_tasks(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        # What it raised is seen as the reason of the cancellation, and is not lost.
        raise cancelled from (None if task.cancelled() else task.exception())
    if late:
        raise TimeoutError(f"it was not done in {seconds:g} s")
    return task.result()

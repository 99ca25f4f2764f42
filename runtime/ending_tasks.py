"""Ends tasks of asyncio for certain."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

AGAIN = 0.5
"""Seconds after which a task that goes on is cancelled once more."""


async def end_tasks(*tasks: asyncio.Task[Any] | asyncio.Future[Any]) -> None:
    """Cancels tasks and returns when they have ended; what they raise is theirs.

    One cancellation may be swallowed: `asyncio.wait_for` of Python 3.11 returns the result instead if that comes at the same
    moment, and libraries make errors of their own of it. A task that works in a loop would go on for ever then.
    """
    left: Iterable[asyncio.Task[Any] | asyncio.Future[Any]] = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=AGAIN)

"""What goes on beside a test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar

from stepscope.runtime.ending_tasks import end_tasks

T = TypeVar("T")


@contextlib.asynccontextmanager
async def running(work: Coroutine[Any, Any, T]) -> AsyncGenerator[asyncio.Task[T]]:
    """Does something beside the block, and no longer than that."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        await end_tasks(task)

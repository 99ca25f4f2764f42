"""Work in the background of a test."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar

import pytest

from stepscope.runtime.loop_threads.ending_tasks import end_tasks

T = TypeVar("T")


PATIENCE = 30.0
"""Seconds after which what does not end is named."""


@contextlib.asynccontextmanager
async def running(work: Coroutine[Any, Any, T]) -> AsyncGenerator[asyncio.Task[T]]:
    """Does something during the block, and no longer than that; fails, and says where it is, if it does not end."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        ending = asyncio.create_task(end_tasks(task))
        await asyncio.wait({ending}, timeout=PATIENCE)
        if not task.done():
            stack = io.StringIO()
            task.print_stack(file=stack)
            pytest.fail(f"the task of the test does not end:\n{stack.getvalue()}", pytrace=False)
        await ending

"""Tasks are ended even if what they await swallows a cancellation."""

from __future__ import annotations

import asyncio

from stepscope.runtime.ending_tasks import end_tasks


async def test_a_cancellation_that_is_swallowed() -> None:
    """The loop of a task goes on after the first two; the third ends it. Others end at once, also those that raise."""
    swallowed = 0

    async def stubborn() -> None:
        nonlocal swallowed
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                if swallowed == 2:
                    raise
                swallowed += 1

    async def raising() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            raise ValueError("mine") from None

    tasks = [asyncio.create_task(work()) for work in (stubborn, raising)]
    await asyncio.sleep(0)
    await end_tasks(*tasks)
    assert swallowed == 2 and tasks[0].cancelled()
    assert isinstance(tasks[1].exception(), ValueError)
    await end_tasks()

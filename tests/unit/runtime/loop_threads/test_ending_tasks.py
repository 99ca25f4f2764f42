"""Tasks are ended even if what they await swallows a cancellation."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

import pytest

from stepscope.runtime.loop_threads.ending_tasks import end_tasks, finish
from tests.support.messages import refused


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


async def impatiently(work: Coroutine[Any, Any, object]) -> asyncio.Task[object]:
    """Cancels something at each turn of the loop until it has ended."""
    task = asyncio.create_task(work)
    while not task.done():
        await asyncio.sleep(0)
        task.cancel()
    return task


async def test_who_ends_tasks_is_cancelled() -> None:
    """It returns no earlier for that: tasks that take their time have ended."""
    ended = asyncio.Event()

    async def slow() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            for _ in range(5):
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.001)
            ended.set()

    task = asyncio.create_task(slow())
    await asyncio.sleep(0)
    assert (await impatiently(end_tasks(task))).cancelled()
    assert task.done() and ended.is_set()


async def test_what_is_finished_is_not_left_half_done() -> None:
    """Who waits may be cancelled as often as one likes: it ends, and the cancellation comes then."""
    steps: list[int] = []

    async def work() -> int:
        for number in range(5):
            await asyncio.sleep(0.001)
            steps.append(number)
        return len(steps)

    assert await finish(work(), 60) == 5
    assert (await impatiently(finish(work(), 60))).cancelled()
    assert len(steps) == 10


async def test_what_cannot_be_finished_is_cancelled() -> None:
    """What takes too long has ended, too; what something raises is told, also to who was cancelled."""
    ended = asyncio.Event()

    async def endless() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    async def failing() -> None:
        await asyncio.sleep(0.001)
        raise ValueError("mine")

    with refused(TimeoutError, "0.01 s"):
        await finish(endless(), 0.01)
    assert ended.is_set()
    with pytest.raises(ValueError, match="mine"):
        await finish(failing(), 60)
    with pytest.raises(asyncio.CancelledError) as caught:
        await (await impatiently(finish(failing(), 60)))
    assert isinstance(caught.value.__cause__, ValueError)

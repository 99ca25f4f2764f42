"""A limit on each of a task's waits."""

from __future__ import annotations

import asyncio
import time

import pytest

from stepscope.collector.time_limit import TimeLimit


async def test_a_wait_that_takes_too_long() -> None:
    """It ends with `TimeoutError`, and the task is not left cancelled; later waits have their whole time."""
    limit = TimeLimit(0.2)
    for _ in range(2):
        began = time.monotonic()
        with pytest.raises(TimeoutError), limit:
            await asyncio.sleep(30)
        assert 0.15 < time.monotonic() - began < 10
        task = asyncio.current_task()
        assert task is not None and task.cancelling() == 0
    limit.close()


async def test_many_waits_that_are_short() -> None:
    """Together they may take longer than the limit, and so may what is between them."""
    limit = TimeLimit(0.2)
    for _ in range(8):
        with limit:
            await asyncio.sleep(0.05)
    await asyncio.sleep(0.5)
    began = time.monotonic()
    with pytest.raises(TimeoutError), limit:
        await asyncio.sleep(30)
    assert time.monotonic() - began > 0.15
    limit.close()


async def test_a_cancellation_goes_on() -> None:
    """One that comes from elsewhere stays one, alone or with the limit's own."""
    for seconds in (60.0, 0.05):

        async def wait(seconds: float = seconds) -> None:
            with TimeLimit(seconds):
                try:
                    await asyncio.sleep(30)
                finally:
                    await asyncio.sleep(0.1)

        task = asyncio.create_task(wait())
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_what_else_is_raised_goes_on() -> None:
    """The limit takes no exception for its own."""
    limit = TimeLimit(0.05)
    with pytest.raises(ValueError, match="mine"), limit:
        raise ValueError("mine")
    await asyncio.sleep(0.2)  # its timer finds nobody waiting
    limit.close()

"""Timing loops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine

from benchmarks.harness.row import Sample

Loop = Callable[[int], object]
AsyncLoop = Callable[[int], Coroutine[None, None, object]]


def empty(n: int) -> None:
    """The loop that all others are written as, around nothing."""
    for _ in range(n):
        pass


def took(loop: Loop, n: int) -> float:
    """Nanoseconds per turn of a loop."""
    start = time.perf_counter_ns()
    loop(n)
    return (time.perf_counter_ns() - start) / n


def per_turn(loop: Loop, n: int, baseline: Loop = empty) -> Sample:
    """Nanoseconds that a turn of `loop` takes beyond one of `baseline`, which is measured just before."""
    without = took(baseline, n)
    return Sample(took(loop, n) - without, without)


def per_turn_in_task(loop: AsyncLoop, n: int) -> Sample:
    """The same, inside an asyncio task."""

    async def both() -> Sample:
        return await asyncio.create_task(inner())

    async def inner() -> Sample:
        without = took(empty, n)
        start = time.perf_counter_ns()
        await loop(n)
        return Sample((time.perf_counter_ns() - start) / n - without, without)

    return asyncio.run(both())

"""Long work on the loop, in slices of a few ms."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable
from typing import TypeVar

T = TypeVar("T")

SLICE = 0.004
"""Seconds after which everything else on the loop has its turn."""


async def in_slices(items: Iterable[T]) -> AsyncGenerator[T]:
    """Yields items for work of much less than `SLICE` each. Anything may change between two of them."""
    end = time.perf_counter() + SLICE
    for item in items:
        yield item
        if time.perf_counter() >= end:
            await asyncio.sleep(0)
            end = time.perf_counter() + SLICE

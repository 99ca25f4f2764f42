"""The same for a loop of coroutines: every task has a row of its own, and leaving the block never stops the loop."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import stepscope as sc


async def batches(count: int) -> AsyncIterator[list[float]]:
    for _ in range(count):
        await asyncio.sleep(0.001)
        yield [random.random() for _ in range(1000)]


@sc.span("forward")
async def forward(batch: list[float]) -> float:
    await asyncio.sleep(0.001)
    return sum(x * x for x in batch)


async def main() -> None:
    async with sc.trace(
        schedule=sc.schedule(wait=1, warmup=1, active=3, repeat=2),
        exporters=[sc.ChromeTraceExporter("trace.json"), sc.PerfettoExporter("trace.pftrace")],
        output_dir="run",
    ) as profiler:
        async for batch in batches(12):
            async with asyncio.TaskGroup() as group:
                halves = [group.create_task(forward(half)) for half in (batch[:500], batch[500:])]
            sc.counter("loss", sum(half.result() for half in halves))
            profiler.step()
    print(profiler.summary())


if __name__ == "__main__":
    asyncio.run(main())

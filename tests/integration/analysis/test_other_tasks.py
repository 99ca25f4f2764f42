"""A loop of asyncio whose steps wait for other tasks: what these do is in the answer, and in the summary."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import stepscope as sc
from stepscope.analysis.explain import explain


def compute(seconds: float) -> None:
    """Uses a processor for so long."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


async def work() -> None:
    """Runs, waits, and runs again."""
    with sc.span("cpu"):
        compute(0.002)
        await asyncio.sleep(0.0001)
        compute(0.002)


def test_spans_of_tasks_that_are_gathered(tmp_path: Path) -> None:
    """They cover the step, as they do where the task that steps calls them."""

    async def loop(profiler: sc.Profiler) -> None:
        for _ in range(30):
            await asyncio.gather(work(), work())
            profiler.step()

    with sc.trace(output_dir=tmp_path) as profiler:
        asyncio.run(loop(profiler))
    (rank,) = explain(tmp_path).ranks
    assert next(part.share for part in rank.shares if part.name == "your spans") > 0.5
    parts = json.loads(profiler.summary(format="json"))["parts"]
    assert next(part["share"] for part in parts if part["name"] == "your spans") > 0.5

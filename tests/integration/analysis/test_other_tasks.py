"""A loop of asyncio whose steps wait for other tasks: what these do is in the answer, and in the summary."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

import stepscope as sc
from stepscope.analysis.explain import explain
from stepscope.analysis.recording import load
from stepscope.runtime.windows.step_parts import OTHER_TASKS, RUNNING, parts_of


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


def test_spans_of_other_tasks_that_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the loop waits for while nothing runs is named, if the step waits for it in no span of its own. Running time stays what it is."""

    monkeypatch.setenv("STEPSCOPE_SIGNALS", "steps")

    async def fetch() -> None:
        with sc.span("fetch"):
            await asyncio.sleep(0.01)

    async def loop(profiler: sc.Profiler) -> None:
        for _ in range(30):
            await asyncio.gather(fetch(), fetch())
            profiler.step()
        for _ in range(10):
            other = asyncio.create_task(fetch())
            await asyncio.sleep(0)
            compute(0.015)
            await other
            profiler.step()

    with sc.trace(output_dir=tmp_path) as profiler:
        asyncio.run(loop(profiler))
    parts = parts_of(load(tmp_path).ranks[0].steps)
    waits, runs = parts[OTHER_TASKS], parts[RUNNING]
    assert waits[:30].max() > 5_000_000 and runs[30:].min() > 14_000_000
    assert OTHER_TASKS in profiler.summary(format="json")

"""Steps that are short, that wait for other tasks, and their findings live and afterwards."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepscope as sc
from stepscope import span, trace
from stepscope.analysis.explain import explain
from stepscope.analysis.findings import Answer
from stepscope.analysis.reading.recording import load
from stepscope.analysis.rules.data import MORE_WORKERS
from stepscope.backends.torch.backend import TorchBackend
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import EventBatch, Kind
from stepscope.runtime.options import SIGNALS, Options
from stepscope.runtime.profiler import Profiler
from stepscope.runtime.schedule.schedule import schedule
from tests.support.basics import require
from tests.support.journals import batch_with_arguments, write_journal

US = 1_000
STEPS = 50


def answer(directory: Path, step_us: int, waiting_us: int, workers: int, batch_us: int) -> Answer:
    """On a training whose steps all take so long, of which it waits for data so long; a worker makes a batch in so long."""
    names = ["step", "enumerate(DataLoader)#_.__next__", "fetch"] * STEPS + ["loader"]
    nothing: dict[str, Any] = {}
    batch = batch_with_arguments(names, [nothing] * (3 * STEPS) + [{"workers": workers}])
    events = batch.events.copy()
    begins = np.arange(STEPS) * step_us * US
    events["kind"][:-1:3], events["kind"][-1] = Kind.STEP, Kind.INSTANT
    events["ts"] = [*np.repeat(begins, 3), 0]
    events["step"] = [*np.repeat(np.arange(STEPS), 3), 0]
    events["dur"][1:-1:3], events["dur"][2:-1:3] = waiting_us * US, batch_us * US
    events["category"][2:] = strings.category("loader")
    events["category"][4:-1:3] = strings.category("user_annotation")
    if not workers:
        events = np.delete(events, np.s_[2:-1:3])
    else:
        events["track"][2:-1:3] = 77
    write_journal(directory / "journal", [EventBatch(batch.source, 0, events, batch.args)])
    return explain(directory)


def test_no_workers_where_they_would_cost_more_than_they_save(tmp_path: Path) -> None:
    """A step of 1.1 ms, half of it in the loader: with a worker it would take twice as long."""
    first = answer(tmp_path, 1_100, 600, 0, 0).findings[0]
    assert first.id == "input-bound-in-process" and first.certainty == "likely"
    assert "num_workers" not in first.action and "a whole batch at once" in first.action
    assert "possibly" in first.gain and "workers would not help" in first.gain


def test_the_gain_of_workers_includes_their_cost(tmp_path: Path) -> None:
    """10 ms of 12: what is left is 2 ms of work and 1 ms of handing over."""
    first = answer(tmp_path, 12_000, 10_000, 0, 0).findings[0]
    assert first.action == MORE_WORKERS and first.certainty == "certain"
    assert "4.0 times" in first.gain and "processors for 4 workers" in first.gain


def test_batches_that_take_long_to_hand_over(tmp_path: Path) -> None:
    """The workers are quick, and the training waits all the same."""
    first = answer(tmp_path, 1_150, 700, 1, 100).findings[0]
    assert first.id == "input-bound-handover" and "61% of each step" in first.title
    assert "num_workers=0" in first.action and "2.1 times" in first.gain


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
    assert next(part.share for part in rank.shares if part.name == "other spans") > 0.5
    parts = json.loads(profiler.summary(format="json"))["parts"]
    assert next(part["share"] for part in parts if part["name"] == "other spans") > 0.5


def same(profiler: Profiler, path: Path) -> None:
    """Facts, statistics and parts of the steps are equal."""
    assert profiler.output.pipeline is not None
    live, (rank,) = profiler.output.pipeline.tables.so_far().steps, load(path).ranks
    recorded = rank.steps.copy()
    recorded["window"] = 0  # which one it was is not stored live
    assert live.last.tobytes() == recorded.tobytes()
    summary, (answer,) = profiler.aggregates(), explain(path).ranks
    assert summary.steps == answer.statistics and summary.steps is not None
    assert (summary.startup_ns, summary.shutdown_ns) == (answer.startup_ns, answer.shutdown_ns)
    judged = recorded[summary.steps.steps - summary.steps.steady :]
    assert sum(part.total_ns for part in summary.parts) == int((judged["end"] - judged["begin"]).sum())
    assert summary.steps_ns == int((recorded["end"] - recorded["begin"]).sum())


@pytest.mark.parametrize("cycles", [0, 3])
def test_spans(cycles: int, tmp_path: Path) -> None:
    """In one window, and in several."""
    chosen = schedule(wait=2, warmup=1, active=10, repeat=cycles) if cycles else None
    with trace(output_dir=tmp_path, schedule=chosen, options=Options(signals=SIGNALS)) as profiler:
        for step in range(60):
            with span("load", category="data"):
                time.sleep(0.0002 if step % 9 else 0.002)
            with span("forward"), span("inner"):
                sum(range(1000))
            profiler.step()
        time.sleep(0.001)
    assert profiler.aggregates().steps is not None
    same(profiler, tmp_path)


@pytest.mark.parametrize("mode", ["stream", "kineto"])
def test_operators(mode: Any, tmp_path: Path) -> None:
    """Kineto's come when the window has ended."""
    require("torch")
    import torch

    network = torch.nn.Linear(8, 2)
    optimizer: Any = torch.optim.SGD(network.parameters(), lr=0.1)
    with trace(output_dir=tmp_path, backends=[TorchBackend(mode)], options=Options(signals=SIGNALS)) as profiler:
        for _ in range(30):
            network(torch.rand(4, 8)).sum().backward()
            optimizer.step()
            profiler.step()
    assert {"forward", "backward", "optimizer"} <= {part.name for part in profiler.aggregates().parts}
    same(profiler, tmp_path)

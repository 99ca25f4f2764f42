"""What `summary()` says while the program runs is what is read back afterwards."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from stepscope import span, trace
from stepscope.analysis.explain import explain
from stepscope.analysis.reading.recording import load
from stepscope.backends.torch.backend import TorchBackend
from stepscope.runtime.options import SIGNALS, Options
from stepscope.runtime.profiler import Profiler
from stepscope.runtime.schedule.schedule import schedule
from tests.support.basics import require


def same(profiler: Profiler, path: Path) -> None:
    """Facts, statistics and parts of the steps are equal."""
    assert profiler.output.pipeline is not None
    live, (rank,) = profiler.output.pipeline.tables.so_far().steps, load(path).ranks
    recorded = rank.steps.copy()
    recorded["window"] = 0  # which one it was is not kept live
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

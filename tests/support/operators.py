"""Recording torch's operators in tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import stepscope as sc
from stepscope.backends.torch import arm as torch_arm
from stepscope.runtime.schedule.schedule import ScheduleFunction
from tests.support.basics import Deferred

ARMED = torch_arm.arm()
torch: Any = Deferred("torch")
"""Imported after arming, so that stream mode is there."""


def record(
    directory: Path,
    work: Callable[[sc.Profiler], object],
    *backends: Any,
    schedule: ScheduleFunction | None = None,
) -> sc.exporters.MemoryExporter:
    """Does some work under a profiler, and returns what it recorded."""
    memory = sc.exporters.MemoryExporter()
    options = sc.Options(journal=False, ring_slots=1 << 18)
    with sc.trace(
        schedule=schedule, backends=backends, exporters=[memory], output_dir=directory, options=options
    ) as profiler:
        work(profiler)
    profiler.raise_errors()
    return memory


def cpu() -> list[Any]:
    """Activities of a profile of torch: the CPU's."""
    return [torch.profiler.ProfilerActivity.CPU]


def network() -> Any:
    """A small network with several kinds of layers."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(72, 8),
        torch.nn.LogSoftmax(dim=1),
    )


def train(steps: int, profiler: sc.Profiler | None = None) -> None:
    """Trains the network on random pictures, a profiler's step per batch."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = torch.utils.data.TensorDataset(torch.randn(4 * steps, 1, 8, 8), torch.randint(0, 8, (4 * steps,)))
    for pictures, labels in torch.utils.data.DataLoader(data, batch_size=4):
        optimizer.zero_grad()
        loss = torch.nn.functional.nll_loss(model(pictures), labels)
        loss.backward()
        optimizer.step()
        if profiler is not None:
            profiler.step()


def environment(**changes: str) -> dict[str, str]:
    """The environment of a child process that arms for itself."""
    variables = {name: value for name, value in os.environ.items() if name != torch_arm.VARIABLE}
    return {**variables, **changes}

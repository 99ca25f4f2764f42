"""Programs as torch's documentation has them, for `torch.profiler` and for whatever takes its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.operators import network, torch

P = Any
"""A module with the names of `torch.profiler`: what is imported is all that differs."""


def inputs() -> Any:
    """A batch for the network."""
    return torch.randn(4, 1, 8, 8)


def stacks(p: P, directory: Path) -> Any:
    """The recipe's program on stacks."""
    model, pictures = network(), inputs()
    with p.profile(
        activities=[p.ProfilerActivity.CPU],
        with_stack=True,
        experimental_config=torch._C._profiler._ExperimentalConfig(verbose=True),
    ) as prof:
        model(pictures)
    print(prof.key_averages(group_by_stack_n=5).table(sort_by="self_cpu_time_total", row_limit=2))
    prof.export_stacks(str(directory / "stacks.txt"), "self_cpu_time_total")
    return prof


def schedule(p: P, directory: Path) -> Any:
    """The recipe's program on long jobs, with torch's own trace handler."""
    model, pictures = network(), inputs()

    def trace_handler(prof: Any) -> None:
        output = prof.key_averages().table(sort_by="self_cpu_time_total", row_limit=10)
        print(output)
        prof.export_chrome_trace(str(directory / ("trace_" + str(prof.step_num) + ".json")))

    with p.profile(
        activities=[p.ProfilerActivity.CPU],
        schedule=p.schedule(skip_first=1, wait=1, warmup=1, active=2, repeat=2),
        on_trace_ready=trace_handler,
    ) as prof:
        for _ in range(10):
            model(pictures)
            prof.step()
    return prof


def tensorboard(p: P, directory: Path) -> Any:
    """The tutorial for TensorBoard."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)

    def train(data: Any) -> None:
        pictures, labels = data
        loss = torch.nn.functional.nll_loss(model(pictures), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    with p.profile(
        schedule=p.schedule(wait=1, warmup=1, active=3, repeat=1),
        on_trace_ready=p.tensorboard_trace_handler(str(directory / "log" / "small")),
        record_shapes=True,
        profile_memory=True,
        with_stack=True,
    ) as prof:
        for step in range(8):
            prof.step()
            if step >= 1 + 1 + 3:
                break
            train((inputs(), torch.randint(0, 8, (4,))))
    return prof


def by_hand(p: P, directory: Path) -> Any:
    """The tutorial's other way: start and stop."""
    model, pictures = network(), inputs()
    prof = p.profile(
        schedule=p.schedule(wait=1, warmup=1, active=2, repeat=1),
        on_trace_ready=p.tensorboard_trace_handler(str(directory / "log" / "small"), worker_name="worker0"),
        record_shapes=True,
    )
    prof.start()
    for step in range(6):
        prof.step()
        if step >= 1 + 1 + 3:
            break
        model(pictures)
    prof.stop()
    return prof


PROGRAMS = (stacks, schedule, tensorboard, by_hand)

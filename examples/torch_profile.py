"""A program for torch.profiler, with its import changed: tables, traces of each window, stacks, and nothing that breaks."""

# torch's annotations are incomplete.
# mypy: allow-untyped-calls
# pyright: reportUnknownMemberType=false

from __future__ import annotations

# Was: from torch.profiler import ...
from stepscope.torch import ProfilerActivity, View, profile, record_function, schedule

import torch
from torch import nn


def trace_handler(prof: View) -> None:
    """Called for each window, while training goes on."""
    print(prof.key_averages().table(sort_by="self_cpu_time_total", row_limit=5))
    prof.export_chrome_trace(f"trace_{prof.step_num}.json")


def main() -> None:
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)

    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=2, repeat=2),
        on_trace_ready=trace_handler,
        record_shapes=True,
    ) as prof:
        prof.add_metadata("model", "two layers")  # torch would lose this: no window is open yet
        for _ in range(8):
            with record_function("forward"):
                loss = network(torch.randn(32, 64)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            prof.step()

    print(prof.key_averages(group_by_input_shape=True).table(sort_by="cpu_time_total", row_limit=5))
    prof.export_chrome_trace("last.json.gz")
    prof.export_chrome_trace("again.json")  # torch would raise here: it saves a trace once
    print(prof.run.report())


if __name__ == "__main__":
    main()

"""Traces a training loop of torch with its operators, for TensorBoard: `tensorboard --logdir run/tensorboard`."""

# torch's annotations are incomplete.
# mypy: allow-untyped-calls
# pyright: reportUnknownMemberType=false

from __future__ import annotations

# Before torch: its operators arrive live then, which costs less.
import stepscope as sc

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    torch.manual_seed(0)
    points = torch.rand(640, 2)
    inside = (points.square().sum(1) < 0.8).long()
    loader = DataLoader(TensorDataset(points, inside), batch_size=32, shuffle=True)
    network = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)

    with sc.trace(
        schedule=sc.schedule(skip_first=5, wait=2, warmup=1, active=5, repeat=1),
        backends=[sc.TorchBackend()],
        on_trace_ready=sc.tensorboard_trace_handler("run/tensorboard"),
        output_dir="run",
    ) as profiler:
        for inputs, labels in loader:
            with sc.span("forward"):
                loss = nn.functional.cross_entropy(network(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            profiler.step()
    print(profiler.summary(top=8))
    print(profiler.report())


if __name__ == "__main__":
    main()

"""Forecasts loads of a grid; the gradients of four batches make one step."""

import argparse

import torch
from torch import nn

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--steps", type=int, default=150)
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(13)
    hours = torch.arange(6000.0)
    load = torch.sin(hours * 6.2832 / 24) + 0.5 * torch.sin(hours * 6.2832 / 168) + 0.1 * torch.randn(6000)
    windows = load.unfold(0, 192, 1)
    model = nn.Sequential(nn.Linear(168, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, 24))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-4)
    step = micro = 0
    while step < args.steps:
        batch = windows[torch.randint(0, len(windows), (256,))]
        loss = nn.functional.l1_loss(model(batch[:, :168]), batch[:, 168:])
        (loss / args.accumulate).backward()
        micro += 1
        if micro % args.accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % 50 == 0:
                print(f"step {step}: {loss.item():.4f}")

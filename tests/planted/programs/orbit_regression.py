"""Learns the next place of a body from the last ones."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.9)
parser.add_argument("--warmup", type=int, default=100)
parser.add_argument("--steps", type=int, default=150)
options = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(6)
phase = torch.rand(3000, 1) * 6.283
speed = 0.1 + 0.2 * torch.rand(3000, 1)
times = torch.arange(17.0)
orbits = torch.stack([torch.cos(phase + speed * times), 0.6 * torch.sin(phase + speed * times)], dim=2)
past, future = orbits[:, :16].flatten(1), orbits[:, 16]

model = nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
for step in range(options.steps):
    for group in optimizer.param_groups:
        group["lr"] = options.lr * min(1.0, (step + 1) / options.warmup)
    rows = torch.randint(0, len(past), (512,))
    loss = ((model(past[rows]) - future[rows]) ** 2).sum(dim=1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 25 == 0:
        print(f"step {step:3d}  loss {loss.item():.4f}")

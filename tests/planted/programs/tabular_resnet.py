"""A residual network that predicts prices from rows of a table."""

import argparse
import time
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Settings:
    threads: int = 32
    width: int = 256
    blocks: int = 3
    batch: int = 256
    steps: int = 150
    rate: float = 1e-3


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.grow = nn.Linear(width, width)
        self.shrink = nn.Linear(width, width)

    def forward(self, rows):
        return rows + self.shrink(torch.relu(self.grow(self.norm(rows))))


def train(settings):
    torch.set_num_threads(settings.threads)
    torch.manual_seed(5)
    columns = 60
    table = torch.randn(20_000, columns)
    price = table[:, :10].prod(dim=1, keepdim=True).tanh() + table[:, 10:20].sum(dim=1, keepdim=True) / 10
    model = nn.Sequential(
        nn.Linear(columns, settings.width),
        *[Block(settings.width) for _ in range(settings.blocks)],
        nn.Linear(settings.width, 1),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.rate)
    began = time.perf_counter()
    for step in range(1, settings.steps + 1):
        rows = torch.randint(0, len(table), (settings.batch,))
        loss = nn.functional.mse_loss(model(table[rows]), price[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            rate = step * settings.batch / (time.perf_counter() - began)
            print(f"step {step} loss {loss.item():.4f} ({rate:.0f} rows/s)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, value in vars(Settings()).items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    train(Settings(**vars(parser.parse_args())))

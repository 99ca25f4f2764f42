"""Shapes of galaxies: spirals, ellipticals and edge-on discs, with a log for TensorBoard."""

import argparse
import math
import tempfile

import torch
from torch import nn
from torch.utils.tensorboard import SummaryWriter

KINDS = ("spiral", "elliptical", "edge-on")


def sky(count, side, generator):
    axis = torch.linspace(-1, 1, side)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    kinds = torch.randint(0, len(KINDS), (count,), generator=generator)
    turns = torch.rand(count, generator=generator) * 2 * math.pi
    images = torch.empty(count, 1, side, side)
    for n, (kind, turn) in enumerate(zip(kinds.tolist(), turns.tolist(), strict=True)):
        u = x * math.cos(turn) + y * math.sin(turn)
        v = y * math.cos(turn) - x * math.sin(turn)
        flat = (1.0, 1.6, 5.0)[kind]
        r = (u.square() + (flat * v).square()).sqrt()
        light = torch.exp(-3 * r)
        if kind == 0:
            light = light * (1 + 0.8 * torch.cos(2 * torch.atan2(v, u) + 9 * r))
        images[n, 0] = light
    return images + 0.6 * torch.randn(images.shape, generator=generator), kinds


class Block(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.conv = nn.Conv2d(inside, outside, 3, stride=2, padding=1, bias=False)
        self.norm = nn.GroupNorm(4, outside)

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x)))


class Classifier(nn.Module):
    def __init__(self, widths=(16, 32, 64), hidden=448):
        super().__init__()
        self.blocks = nn.Sequential(*(Block(a, b) for a, b in zip((1, *widths), widths, strict=False)))
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(widths[-1] * 25, hidden), nn.ReLU(), nn.Linear(hidden, 3))

    def forward(self, images):
        return self.head(self.blocks(images))


class Board:
    """A training's curves in TensorBoard."""

    def __init__(self, folder, model, every, distributions):
        self.writer = SummaryWriter(folder)
        self.model = model
        self.every = every
        self.distributions = distributions

    def after_step(self, step, loss, rate):
        if step % self.every:
            return
        self.curves(step, loss, rate)
        if self.distributions:
            self.weights(step)

    def curves(self, step, loss, rate):
        self.writer.add_scalar("train/loss", loss.item(), step)
        self.writer.add_scalar("train/rate", rate, step)

    def weights(self, step):
        for name, value in self.model.named_parameters():
            self.writer.add_histogram(f"weights/{name}", value.detach(), step)
            self.writer.add_histogram(f"gradients/{name}", value.grad, step)

    def close(self):
        self.writer.close()


def fit(model, images, kinds, board, args):
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    step = 0
    while step < args.steps:
        for chosen in torch.randperm(len(images)).split(args.batch):
            loss = nn.functional.cross_entropy(model(images[chosen]), kinds[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            step += 1
            board.after_step(step, loss.detach(), schedule.get_last_lr()[0])
            if step % 100 == 0:
                print(f"step {step}: {loss.item():.4f}", flush=True)
            if step == args.steps:
                break


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--log-every", type=int, default=8)
    parser.add_argument("--log", choices=["scalars", "all"], default="all")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(11)
    images, kinds = sky(1920, 40, torch.Generator().manual_seed(2))
    model = Classifier()
    with tempfile.TemporaryDirectory() as folder:
        board = Board(folder, model, args.log_every, distributions=args.log == "all")
        fit(model, images, kinds, board, args)
        board.close()


if __name__ == "__main__":
    main()

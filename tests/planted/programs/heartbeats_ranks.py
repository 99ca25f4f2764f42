"""Arrhythmias in ECG of two leads, on several ranks; the share of ordered pairs is followed on one of them.

python -m torch.distributed.run --nproc-per-node 2 heartbeats_ranks.py
"""

import argparse
import math
from collections import deque

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CLASSES = 5
SAMPLES = 360


def beats(count, seed):
    g = torch.Generator().manual_seed(seed)
    kinds = torch.randint(0, CLASSES, (count,), generator=g)
    t = torch.linspace(-1, 1, SAMPLES)
    width = (0.04 + 0.03 * kinds)[:, None, None]
    shift = 0.1 * torch.randn(count, 1, 1, generator=g)
    lead = torch.tensor([1.0, -0.6])[None, :, None]
    peak = torch.exp(-(((t - shift) / width) ** 2)) + 0.25 * torch.exp(-(((t - shift - 0.4) / 0.15) ** 2))
    return lead * peak + 0.2 * torch.randn(count, 2, SAMPLES, generator=g), kinds


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Conv1d(width, width, 7, padding=3)
        self.second = nn.Conv1d(width, width, 7, padding=3)

    def forward(self, x):
        return x + self.second(F.silu(self.first(F.silu(x))))


class BeatNet(nn.Module):
    def __init__(self, width=24, depth=2):
        super().__init__()
        self.enter = nn.Conv1d(2, width, 15, stride=4, padding=7)
        self.body = nn.Sequential(*(Residual(width) for _ in range(depth)))
        self.leave = nn.Linear(width, CLASSES)

    def forward(self, x):
        return self.leave(self.body(self.enter(x)).mean(2))


class Concordance:
    """How often a beat of a class is ranked before one of another class, by class."""

    def __init__(self, batches):
        self.batches = deque(maxlen=batches)
        self.share = np.zeros(CLASSES)

    def of_class(self, scores, kinds, kind):
        inside = scores[kinds == kind, kind].tolist()
        outside = scores[kinds != kind, kind].tolist()
        before = 0.0
        for value in inside:
            for other in outside:
                if other < value:
                    before += 1
                elif other == value:
                    before += 0.5
        return before / max(1, len(inside) * len(outside))

    def update(self, scores, kinds):
        self.batches.append((scores, kinds))
        scores, kinds = (np.concatenate(part) for part in zip(*self.batches, strict=True))
        self.share = np.array([self.of_class(scores, kinds, kind) for kind in range(CLASSES)])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--follow", choices=["pairs", "loss"], default="pairs")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    waves, kinds = beats(80 * args.batch, seed=20 + rank)
    model = DistributedDataParallel(BeatNet())
    optimizer = torch.optim.RMSprop(model.parameters(), lr=5e-4)
    reporter = world - 1  # rank 0 has the launcher's log already
    concordance = Concordance(batches=12)

    for epoch in range(args.epochs):
        losses = []
        for chosen in torch.randperm(len(waves)).split(args.batch):
            scores = model(waves[chosen])
            loss = F.cross_entropy(scores, kinds[chosen])
            if rank == reporter and args.follow == "pairs":
                concordance.update(scores.detach().softmax(1).numpy(), kinds[chosen].numpy())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        if rank == reporter:
            mean = torch.stack(losses).mean().item()
            print(
                f"epoch {epoch}: loss {mean:.4f} of {math.log(CLASSES):.4f}, pairs {concordance.share.mean():.3f}",
                flush=True,
            )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

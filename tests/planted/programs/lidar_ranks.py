"""Scenes of a laser scanner, a set of points each, classified by what passes: a PointNet on several ranks.

python -m torch.distributed.run --nproc-per-node 2 lidar_ranks.py
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

KINDS = 4


class Scenes:
    """`count` scenes; the number of points depends on how much of the street is in sight."""

    def __init__(self, count, seed):
        g = torch.Generator().manual_seed(seed)
        self.sizes = (1100 * torch.exp(1.25 * torch.randn(count, generator=g))).clamp(150, 10_000).long()
        self.kinds = torch.randint(0, KINDS, (count,), generator=g)
        self.seeds = torch.randint(0, 2**31, (count,), generator=g)
        self.pool = torch.randn(16_384, 4, generator=g)
        self.shapes = torch.rand(KINDS, 4, generator=g) + 0.5

    def batch(self, chosen):
        """Points of all scenes of a batch, one after the other, and the scene of each point."""
        parts = []
        for n in chosen:
            start = int(self.seeds[n]) % (len(self.pool) - int(self.sizes[n]))
            parts.append(self.pool[start : start + int(self.sizes[n])] * self.shapes[self.kinds[n]])
        owner = torch.repeat_interleave(torch.arange(len(chosen)), self.sizes[chosen])
        return torch.cat(parts), owner, self.kinds[chosen]


def plan(sizes, batch, world, order, seed):
    """Scenes by step and rank, steps x ranks x batch."""
    g = torch.Generator().manual_seed(seed)
    steps = len(sizes) // (batch * world)
    if order == "random":
        return torch.randperm(len(sizes), generator=g)[: steps * world * batch].view(steps, world, batch)
    near = sizes.argsort()[: steps * world * batch].view(steps, batch, world).transpose(1, 2)
    return near[torch.randperm(steps, generator=g)]


class PointNet(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.each = nn.Sequential(
            nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2 * width)
        )
        self.all = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, KINDS))

    def forward(self, points, owner, scenes):
        features = self.each(points)
        index = owner[:, None].expand(-1, features.shape[1])
        empty = features.new_zeros(scenes, features.shape[1])
        pooled = empty.scatter_reduce(0, index, features, "mean", include_self=False)
        return self.all(pooled)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--order", choices=["random", "size"], default="random", help="of the scenes in an epoch")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--scenes", type=int, default=400)
    parser.add_argument("--batch", type=int, default=1)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    scenes = Scenes(args.scenes, seed=9)
    model = DistributedDataParallel(PointNet())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    for epoch in range(args.epochs):
        total = torch.zeros(())
        steps = plan(scenes.sizes, args.batch, world, args.order, seed=epoch)
        for chosen in steps[:, rank]:
            points, owner, kinds = scenes.batch(chosen)
            loss = nn.functional.cross_entropy(model(points, owner, len(chosen)), kinds)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        if rank == 0:
            print(f"epoch {epoch + 1} of {args.epochs}: {float(total) / len(steps):.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

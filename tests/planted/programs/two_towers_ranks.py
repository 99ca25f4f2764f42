"""A model of two towers (users and articles) on several ranks, with DistributedDataParallel.

torchrun --nproc-per-node 2 two_towers_ranks.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class TwoTowers(nn.Module):
    def __init__(self, users=128, articles=192, width=96):
        super().__init__()
        self.users = nn.Sequential(nn.Linear(users, 512), nn.ReLU(), nn.Linear(512, width))
        self.articles = nn.Sequential(nn.Linear(articles, 512), nn.ReLU(), nn.Linear(512, width))

    def forward(self, user, article):
        return self.users(user) @ self.articles(article).T


def train(steps=150, batch=512):
    rank = dist.get_rank()
    torch.manual_seed(17)
    model = DDP(TwoTowers())
    torch.manual_seed(100 + rank)
    users = torch.randn(8, batch, 128)
    articles = torch.cat([users, torch.randn(8, batch, 64)], dim=2)
    target = torch.arange(batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(steps):
        scores = model(users[step % 8], articles[step % 8])
        loss = nn.functional.cross_entropy(scores, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 50 == 0:
            print(f"step {step}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train()
    dist.barrier()
    dist.destroy_process_group()

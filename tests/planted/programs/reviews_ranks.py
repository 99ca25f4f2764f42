"""Sentiment of product reviews with a small transformer on several ranks; gradients are averaged by hand.

One review at a time and rank, so nothing is padded.
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

VOCABULARY = 600


def write_reviews(count, generator):
    """Most reviews are a few lines, some are essays."""
    lengths = torch.empty(count).log_normal_(4.9, 1.1, generator=generator).clamp(16, 1200).int().tolist()
    return [torch.randint(2, VOCABULARY, (length,), generator=generator) for length in lengths]


def order_of(reviews, sampler, ranks, generator):
    """Indexes of reviews; each step takes `ranks` of them, one for each rank."""
    if sampler == "random":
        return torch.randperm(len(reviews), generator=generator).tolist()
    by_length = sorted(range(len(reviews)), key=lambda index: len(reviews[index]))
    groups = [by_length[start : start + ranks] for start in range(0, len(by_length), ranks)]
    return [index for group in torch.randperm(len(groups), generator=generator).tolist() for index in groups[group]]


class Reader(nn.Module):
    def __init__(self, width=96, layers=2):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def forward(self, tokens):
        return self.head(self.encoder(self.embedding(tokens)).mean(dim=1))


def average_gradients(model, ranks):
    gradients = [parameter.grad for parameter in model.parameters()]
    flat = torch.cat([gradient.view(-1) for gradient in gradients])
    dist.all_reduce(flat)
    flat /= ranks
    for gradient, part in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--sampler", choices=["random", "bucket"], default="random")
    parser.add_argument("--steps", type=int, default=160)
    args = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(21)
    reviews = write_reviews(args.steps * ranks, generator)
    order = order_of(reviews, args.sampler, ranks, generator)

    torch.manual_seed(0)
    model = Reader()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for step in range(args.steps):
        tokens = reviews[order[step * ranks + rank]].unsqueeze(0)
        target = tokens[:, 0] % 2
        loss = F.cross_entropy(model(tokens), target)
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model, ranks)
        optimizer.step()
        if rank == 0 and step % 40 == 0:
            print(f"step {step}: loss {loss.item():.3f}, {tokens.shape[1]} tokens", flush=True)
    dist.barrier()
    dist.destroy_process_group()

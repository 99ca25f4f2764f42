"""Sentiment of product reviews with a small transformer on several ranks; gradients are averaged by hand.

One row at a time and rank, so nothing is padded.
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

VOCABULARY = 600


def write_reviews(count, generator):
    """Most reviews are a few lines, the others are essays."""
    lines = torch.randint(12, 50, (count,), generator=generator)
    essays = torch.randint(400, 800, (count,), generator=generator)
    lengths = torch.where(torch.rand(count, generator=generator) < 0.3, essays, lines)
    return [torch.randint(2, VOCABULARY, (length,), generator=generator) for length in lengths.tolist()]


def rows_of(reviews, pack):
    """The rows to train on: a review each, or pieces of `pack` tokens of all of them."""
    if not pack:
        return reviews
    tokens = torch.cat(reviews)
    return list(tokens[: len(tokens) // pack * pack].split(pack))


class Reader(nn.Module):
    def __init__(self, width=128, layers=2):
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
    parser.add_argument("--pack", type=int, default=0, metavar="TOKENS")
    parser.add_argument("--reviews", type=int, default=480)
    args = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(24)
    rows = rows_of(write_reviews(args.reviews, generator), args.pack)

    torch.manual_seed(0)
    model = Reader()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for step in range(len(rows) // ranks):
        tokens = rows[step * ranks + rank].unsqueeze(0)
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

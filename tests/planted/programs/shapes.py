#!/usr/bin/env python3
"""Denoising autoencoder for drawings of simple shapes.

Prints the loss on noisy drawings of the training set and the moving average of the loss on a held-out set.
"""

from __future__ import annotations

import argparse
import collections

import torch
from torch import Tensor, nn


def drawings(count: int, side: int, generator: torch.Generator) -> Tensor:
    axis = torch.linspace(-1, 1, side)
    y, x = axis[:, None], axis[None, :]
    centres = torch.rand(count, 2, 1, 1, generator=generator) - 0.5
    sizes = torch.rand(count, 1, 1, generator=generator) * 0.3 + 0.2
    dx, dy = (x - centres[:, 0]).abs(), (y - centres[:, 1]).abs()
    discs = (dx**2 + dy**2).sqrt() < sizes
    squares = torch.maximum(dx, dy) < sizes
    which = torch.rand(count, 1, 1, generator=generator) < 0.5
    return torch.where(which, discs, squares).float().unsqueeze(1)


class Autoencoder(nn.Module):
    def __init__(self, channels: int = 16, code: int = 32) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, channels, 3, stride=2, padding=1),
            nn.LeakyReLU(0.1),
            nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1),
            nn.LeakyReLU(0.1),
            nn.Flatten(),
            nn.Linear(2 * channels * 8 * 8, code),
        )
        self.decoder = nn.Sequential(
            nn.Linear(code, 2 * channels * 8 * 8),
            nn.Unflatten(1, (2 * channels, 8, 8)),
            nn.ConvTranspose2d(2 * channels, channels, 4, stride=2, padding=1),
            nn.LeakyReLU(0.1),
            nn.ConvTranspose2d(channels, 1, 4, stride=2, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x))


def held_out_loss(model: Autoencoder, clean: Tensor, noisy: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(model(noisy), clean)


def train(args: argparse.Namespace) -> None:
    generator = torch.Generator().manual_seed(args.seed)
    torch.manual_seed(args.seed)
    train_set = drawings(2000, 32, generator)
    held_out = drawings(48, 32, generator)
    held_out_noisy = held_out + args.noise * torch.randn(held_out.shape, generator=generator)

    model = Autoencoder()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=args.lr)
    recent: collections.deque[Tensor] = collections.deque(maxlen=args.window)

    for step in range(1, args.steps + 1):
        clean = train_set[torch.randint(len(train_set), (args.batch,), generator=generator)]
        noisy = clean + args.noise * torch.randn(clean.shape, generator=generator)
        loss = nn.functional.binary_cross_entropy_with_logits(model(noisy), clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        recent.append(held_out_loss(model, held_out, held_out_noisy))
        if step % args.print_every == 0:
            average = torch.stack(list(recent)).mean()
            print(f"step {step}: train {loss.item():.4f}, held out {average.item():.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--noise", type=float, default=0.4)
    parser.add_argument("--window", type=int, default=None, help="steps in the moving average (default: all)")
    parser.add_argument("--print-every", type=int, default=25)
    parser.add_argument("--seed", type=int, default=21)
    args = parser.parse_args()
    torch.set_num_threads(1)
    train(args)


if __name__ == "__main__":
    main()

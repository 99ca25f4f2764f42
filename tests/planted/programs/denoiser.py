"""Removes noise from small pictures; a new best is looked at more closely."""

import argparse

import torch
from torch import nn


class Denoiser(nn.Module):
    def __init__(self, channels=24):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, 1, 3, padding=1),
        )

    def forward(self, noisy):
        return noisy - self.net(noisy)


def pictures(count, generator):
    """Two bars across each picture."""
    grid = torch.arange(32.0)
    place = torch.rand(count, 2, 1, 1, generator=generator) * 32
    rows = torch.exp(-((grid.view(1, 32, 1) - place[:, 0]) ** 2) / 8).expand(count, 32, 32)
    columns = torch.exp(-((grid.view(1, 1, 32) - place[:, 1]) ** 2) / 8).expand(count, 32, 32)
    return (rows + columns).unsqueeze(1).contiguous()


class Trainer:
    def __init__(self, held_out):
        self.generator = torch.Generator().manual_seed(4)
        torch.manual_seed(4)
        self.model = Denoiser()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=8e-4)
        self.held_out = pictures(held_out, torch.Generator().manual_seed(41))
        self.average = None
        self.best = None

    def train_batch(self):
        clean = pictures(16, self.generator)
        noisy = clean + 0.3 * torch.randn(clean.shape, generator=self.generator)
        loss = nn.functional.mse_loss(self.model(noisy), clean)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        generator = torch.Generator().manual_seed(40)
        error = 0.0
        for clean in self.held_out.split(32):
            noisy = clean + 0.3 * torch.randn(clean.shape, generator=generator)
            error += nn.functional.mse_loss(self.model(noisy), clean).item() * len(clean)
        self.model.train()
        return error / len(self.held_out)

    def fit(self, steps):
        for step in range(steps):
            loss = self.train_batch()
            self.average = loss if self.average is None else 0.9 * self.average + 0.1 * loss
            if self.best is None:
                self.best = self.average
            elif self.average < 0.45 * self.best:
                self.best = self.average
                print(f"step {step}: {self.average:.5f}, held out {self.validate():.5f}")
        print(f"done: {self.average:.5f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--held-out", type=int, default=1000, help="pictures")
    parser.add_argument("--steps", type=int, default=150)
    options = parser.parse_args()
    torch.set_num_threads(1)
    Trainer(options.held_out).fit(options.steps)

"""Wear of bearings from vibration: what is left of their life."""

import argparse
import math
import pathlib
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WINDOW = 1024


class Vibration(Dataset):
    def __init__(self, runs, windows, seed):
        g = torch.Generator().manual_seed(seed)
        self.windows = windows
        self.wear = torch.rand(runs, generator=g)
        self.signals = torch.randn(runs, 8 * WINDOW, generator=g)
        t = torch.arange(8 * WINDOW)
        for wear, signal in zip(self.wear.tolist(), self.signals, strict=True):
            strikes = (t % 107 == 0).float() * 6 * wear
            ringing = torch.exp(-torch.arange(60) / 12) * torch.sin(torch.arange(60) * 0.9)
            signal += nn.functional.conv1d(strikes[None, None], ringing.flip(0)[None, None], padding=30)[0, 0, : len(t)]
        self.hann = torch.hann_window(WINDOW)

    def __len__(self):
        return self.windows

    def __getitem__(self, index):
        run = index % len(self.signals)
        start = (index * 379) % (7 * WINDOW)
        part = self.signals[run, start : start + WINDOW]
        return torch.stack([part, part * self.hann]), self.wear[run]


class Regressor(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(2, width, 31, stride=4, padding=15),
            nn.ELU(),
            nn.Conv1d(width, width, 15, stride=2, padding=7),
            nn.ELU(),
            nn.Conv1d(width, width, 7, padding=3),
            nn.ELU(),
            nn.AdaptiveMaxPool1d(4),
            nn.Flatten(),
            nn.Linear(4 * width, 1),
        )

    def forward(self, x):
        return self.layers(x).squeeze(1).sigmoid()


@torch.no_grad()
def validate(model, batches):
    model.eval()
    error = sum(nn.functional.mse_loss(model(x), y) for x, y in batches) / len(batches)
    model.train()
    return math.sqrt(error)


def train(args, folder):
    torch.manual_seed(args.seed)
    data = Vibration(runs=160, windows=args.steps * args.batch, seed=args.seed)
    loader = DataLoader(data, batch_size=args.batch, shuffle=True, num_workers=1)
    held_out = list(DataLoader(Vibration(runs=32, windows=64, seed=args.seed + 1), batch_size=32))
    model = Regressor(args.width)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for step, (windows, wear) in enumerate(loader, 1):
        loss = nn.functional.smooth_l1_loss(model(windows), wear)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % args.validate_every == 0:
            print(f"step {step}  loss {loss.item():.4f}  held out {validate(model, held_out):.4f}", flush=True)
    torch.save(model.state_dict(), folder / "bearings.pt")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--width", type=int, default=48)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--validate-every", type=int, default=100)
    parser.add_argument("--seed", type=int, default=8)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        train(args, pathlib.Path(folder))


if __name__ == "__main__":
    main()

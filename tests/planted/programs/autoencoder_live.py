"""An autoencoder for spectra, with a summary of its weights that a status page shows while it trains."""

import argparse
import json
import os
import tempfile
import threading

import torch
from torch import nn


class LiveSummary(threading.Thread):
    """Keeps `summary.json` up to date: the histogram of the weights of each layer."""

    def __init__(self, model, path, refresh):
        super().__init__(daemon=True)
        self.model = model
        self.path = path
        self.refresh = refresh
        self.finished = threading.Event()

    def histogram(self, weights, bins=40, limit=0.25):
        counts = [0] * bins
        for weight in weights:
            place = int((weight + limit) / (2 * limit) * bins)
            counts[min(max(place, 0), bins - 1)] += 1
        return counts

    def run(self):
        while not self.finished.wait(self.refresh):
            summary = {}
            for name, parameter in self.model.named_parameters():
                summary[name] = self.histogram(parameter.detach().flatten().tolist())
            with open(self.path, "w") as file:
                json.dump(summary, file)


def spectra(count, width):
    centers = torch.rand(count, 3, 1) * width
    widths = 2 + 8 * torch.rand(count, 3, 1)
    return torch.exp(-(((torch.arange(width) - centers) / widths) ** 2)).sum(dim=1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--refresh", type=float, default=0.05, metavar="SECONDS", help="of the summary")
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(3)
    data = spectra(4096, 256)
    model = nn.Sequential(
        nn.Linear(256, 320), nn.GELU(), nn.Linear(320, 16), nn.Linear(16, 320), nn.GELU(), nn.Linear(320, 256)
    )
    path = os.path.join(tempfile.mkdtemp(), "summary.json")
    summary = LiveSummary(model, path, args.refresh)
    summary.start()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(args.steps):
        batch = data[torch.randint(0, len(data), (512,))]
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"{step} {loss.item():.5f}", flush=True)
    summary.finished.set()
    summary.join()


if __name__ == "__main__":
    main()

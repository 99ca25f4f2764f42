"""An autoencoder for spectra; how well they are reconstructed is rated during the training."""

import argparse
import queue
import threading

import torch
from torch import nn


class Quality(threading.Thread):
    """Rates the errors of batches: the worst sample, and how many values are within some limits."""

    LIMITS = (0.01, 0.03, 0.1, 0.3)

    def __init__(self):
        super().__init__(daemon=True)
        self.batches = queue.SimpleQueue()
        self.worst = 0.0
        self.within = dict.fromkeys(self.LIMITS, 0)
        self.count = 0

    def rate(self, errors):
        for sample in errors.tolist():
            total = 0.0
            for error in sample:
                error = abs(error)
                total += error
                for limit in self.LIMITS:
                    if error < limit:
                        self.within[limit] += 1
                        break
            self.worst = max(self.worst, total / len(sample))
            self.count += len(sample)

    def run(self):
        while (errors := self.batches.get()) is not None:
            self.rate(errors)

    def __str__(self):
        parts = [f"{self.within[limit] / max(self.count, 1):.0%} < {limit}" for limit in self.LIMITS]
        return f"worst {self.worst:.3f}, " + ", ".join(parts)


def spectra(count, width):
    centers = torch.rand(count, 3, 1) * width
    widths = 2 + 8 * torch.rand(count, 3, 1)
    return torch.exp(-(((torch.arange(width) - centers) / widths) ** 2)).sum(dim=1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate-every", type=int, default=1, metavar="STEPS")
    parser.add_argument("--steps", type=int, default=150)
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(3)
    data = spectra(4096, 256)
    model = nn.Sequential(
        nn.Linear(256, 320), nn.GELU(), nn.Linear(320, 16), nn.Linear(16, 320), nn.GELU(), nn.Linear(320, 256)
    )
    quality = Quality()
    quality.start()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for step in range(args.steps):
        batch = data[torch.randint(0, len(data), (512,))]
        output = model(batch)
        loss = nn.functional.mse_loss(output, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % args.rate_every == 0:
            quality.batches.put((output.detach() - batch)[:200])
        if step % 50 == 0:
            print(f"{step}: {loss.item():.5f} ({quality})", flush=True)
    quality.batches.put(None)
    quality.join()


if __name__ == "__main__":
    main()

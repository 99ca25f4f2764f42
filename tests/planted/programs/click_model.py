"""Predicts clicks from categories, and keeps every prediction for the audit."""

import argparse
import os
import tempfile

import numpy as np
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--durability", choices=["part", "run"], default="part", help="when the audit must be on disk")
parser.add_argument("--out", default=None, help="folder of the audit")
parser.add_argument("--steps", type=int, default=150)
args = parser.parse_args()


class Audit:
    """A file with one row for each prediction, and one with the place and the size of each part of a batch."""

    def __init__(self, folder, durability):
        self.rows = open(os.path.join(folder, "audit.rows"), "wb")
        self.index = open(os.path.join(folder, "audit.index"), "w")
        self.durability = durability

    def append(self, features, scores):
        rows = np.concatenate([features.numpy().astype(np.float32), scores.numpy()], axis=1)
        for part in np.array_split(rows, 16):
            print(self.rows.tell(), len(part), file=self.index)
            self.rows.write(part.tobytes())
            if self.durability == "part":
                self.sync()

    def sync(self):
        for file in (self.rows, self.index):
            file.flush()
            os.fsync(file.fileno())

    def close(self):
        self.sync()
        print("audit of", self.rows.tell(), "bytes")
        self.rows.close()
        self.index.close()


class ClickModel(nn.Module):
    def __init__(self, fields=24, size=1000, width=8):
        super().__init__()
        self.register_buffer("offsets", torch.arange(fields) * size)
        self.embedding = nn.Embedding(fields * size, width)
        self.layers = nn.Sequential(nn.Linear(fields * width, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, features):
        return self.layers(self.embedding(features + self.offsets).flatten(1))


torch.set_num_threads(1)
torch.manual_seed(8)
folder = args.out or tempfile.mkdtemp()
model = ClickModel()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
audit = Audit(folder, args.durability)
for step in range(args.steps):
    features = torch.randint(0, 1000, (2048, 24))
    labels = ((features[:, :3].sum(dim=1, keepdim=True) % 7) < 2).float()
    scores = model(features)
    loss = nn.functional.binary_cross_entropy_with_logits(scores, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    audit.append(features, scores.detach())
    if step % 50 == 0:
        print("step", step, "loss", round(loss.item(), 4))
audit.close()

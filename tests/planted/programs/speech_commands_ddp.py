"""Keyword spotting on recordings of several laboratories: every rank trains on the shard of one of them.

torchrun --nproc-per-node 3 speech_commands_ddp.py
"""

import argparse
import lzma
import os

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

SAMPLES = 16000
WORDS = 12


class Shard(Dataset):
    """The recordings of one laboratory, as they came from it: 16 bits a sample, raw or xz."""

    def __init__(self, encoding, count, seed):
        self.encoding = encoding
        random = np.random.default_rng(seed)
        self.labels = random.integers(0, WORDS, count)
        time = np.arange(SAMPLES) / SAMPLES
        self.records = []
        for label in self.labels:
            wave = np.sin(2 * np.pi * (80 + 25 * label) * time) + random.normal(0, 0.4, SAMPLES)
            record = (wave * 8000).astype("<i2").tobytes()
            self.records.append(lzma.compress(record, preset=1) if encoding == "xz" else record)

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):
        record = self.records[index]
        if self.encoding == "xz":
            record = lzma.decompress(record)
        wave = np.frombuffer(record, dtype="<i2").astype(np.float32) / 32768
        return torch.from_numpy(wave), int(self.labels[index])


class Spotter(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(1, 16, 160, stride=40),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(16, 32, 9),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(8),
        )
        self.classify = nn.Sequential(nn.Flatten(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, WORDS))

    def forward(self, waves):
        return self.classify(self.features(waves.unsqueeze(1)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--encodings", default="raw,raw,xz", help="of the shards, one for each rank")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(7)
    shard = Shard(args.encodings.split(",")[rank], 30 * args.batch_size, seed=100 + rank)
    loader = DataLoader(shard, batch_size=args.batch_size, shuffle=True, drop_last=True)
    model = DistributedDataParallel(Spotter())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()

    for epoch in range(args.epochs):
        total = 0.0
        for waves, labels in loader:
            loss = criterion(model(waves), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        if rank == 0:
            print(f"epoch {epoch}: loss {total / len(loader):.4f} on {os.environ['WORLD_SIZE']} ranks", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

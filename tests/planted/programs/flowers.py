"""Trains a small residual network on pictures of flowers."""

import argparse
import math
import zlib

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

KINDS = 8
STORED = 184  # side of a stored photo, in pixels
SIDE = 56


def draw(kind, rng):
    """A photo of a flower with `kind + 3` petals."""
    y, x = np.mgrid[-1 : 1 : STORED * 1j, -1 : 1 : STORED * 1j]
    x, y = x + rng.uniform(-0.2, 0.2), y + rng.uniform(-0.2, 0.2)
    radius = 0.35 + 0.25 * np.cos((kind + 3) * np.arctan2(y, x) + rng.uniform(0, 2 * math.pi))
    petals = 1 / (1 + np.exp(18 * (np.hypot(x, y) - radius)))
    colour = rng.uniform(0.4, 1, size=3)
    photo = petals[..., None] * colour + (1 - petals[..., None]) * np.array([0.1, 0.35, 0.1])
    photo += rng.normal(0, 0.02, size=photo.shape)
    return (photo.clip(0, 1) * 255).astype(np.uint8)


class Photos(Dataset):
    def __init__(self, count, augment, seed):
        rng = np.random.default_rng(seed)
        self.augment = augment
        self.labels = [int(kind) for kind in rng.integers(0, KINDS, size=count)]
        self.files = [zlib.compress(draw(kind, rng).tobytes(), 1) for kind in self.labels]
        self.angles = rng.uniform(-0.5, 0.5, size=count)
        self.mean = np.array([0.3, 0.4, 0.3], dtype=np.float32)
        self.std = np.array([0.25, 0.2, 0.25], dtype=np.float32)

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        photo = np.frombuffer(zlib.decompress(self.files[index]), dtype=np.uint8).reshape(STORED, STORED, 3)
        angle = self.angles[index] if self.augment else 0.0
        grid = np.linspace(-STORED * 0.36, STORED * 0.36, SIDE, dtype=np.float32)
        x, y = np.meshgrid(grid, grid)
        centre = (STORED - 1) / 2
        u = centre + x * math.cos(angle) - y * math.sin(angle)
        v = centre + x * math.sin(angle) + y * math.cos(angle)
        left, top = u.astype(np.int64).clip(0, STORED - 2), v.astype(np.int64).clip(0, STORED - 2)
        right, low = (u - left)[..., None], (v - top)[..., None]
        upper = photo[top, left] * (1 - right) + photo[top, left + 1] * right
        lower = photo[top + 1, left] * (1 - right) + photo[top + 1, left + 1] * right
        image = (upper * (1 - low) + lower * low).astype(np.float32) / 255
        if self.augment and index % 2:
            image = image[:, ::-1]
        image = (image - self.mean) / self.std
        return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))), self.labels[index]


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.short = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x):
        y = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(self.second_norm(self.second(y)) + self.short(x))


class FlowerNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 5, 2, 2)
        self.blocks = nn.Sequential(Block(width, width, 1), Block(width, 2 * width, 2), Block(2 * width, 4 * width, 2))
        self.head = nn.Linear(4 * width, KINDS)

    def forward(self, x):
        return self.head(self.blocks(torch.relu(self.stem(x))).mean(dim=(2, 3)))


def evaluate(model, loader):
    model.eval()
    right = total = 0
    with torch.no_grad():
        for images, labels in loader:
            right += int((model(images).argmax(1) == labels).sum())
            total += len(labels)
    return right / total


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=24)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(7)
    torch.set_num_threads(1)
    photos = Photos(320, augment=True, seed=1)
    sampler = RandomSampler(photos, replacement=True, num_samples=args.steps * args.batch_size)
    loader = DataLoader(photos, args.batch_size, sampler=sampler, num_workers=args.workers)
    held_out = DataLoader(Photos(64, augment=False, seed=2), args.batch_size)

    model = FlowerNet(args.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.05)

    for step, (images, labels) in enumerate(loader):
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 25 == 0:
            print(f"step {step:4d}  loss {loss.item():.4f}  lr {schedule.get_last_lr()[0]:.4f}")
    print(f"held-out accuracy {evaluate(model, held_out):.3f}")


if __name__ == "__main__":
    main()

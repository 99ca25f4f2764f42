"""Lung nodules in CT scans: cubes around candidates, a small network of 3D convolutions."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE = 24  # voxels of a cube


class Scans(Dataset):
    """Volumes of 16-bit Hounsfield units with one candidate each; those of thin slices come on a finer grid."""

    def __init__(self, count, draws, resampled, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(0, 2, (count,), generator=g)
        self.order = torch.cat([torch.randperm(count, generator=g) for _ in range(-(-draws // count))])[:draws]
        self.thin = torch.zeros(count, dtype=torch.bool)
        self.thin[torch.randperm(count, generator=g)[: count // 40]] = True
        self.volumes = []
        for label, thin in zip(self.labels.tolist(), self.thin.tolist(), strict=True):
            self.volumes.append(self.scan(label, 112 if thin else 48, g))
        if resampled:
            for n in self.thin.nonzero().flatten().tolist():
                self.volumes[n] = self.resample(self.volumes[n])

    @staticmethod
    def scan(label, side, g):
        axis = torch.linspace(-1, 1, side)
        distance = (axis[:, None, None] ** 2 + axis[:, None] ** 2 + axis**2).sqrt()
        radius = 0.18 + 0.2 * label * torch.rand((), generator=g)
        noise = torch.randn(side, side, side, generator=g)
        return (-850 + 900 * (distance < radius) + 120 * noise).to(torch.int16)

    @staticmethod
    def resample(volume, to=48):
        """Smooth along every axis, then take the coarser grid."""
        x = volume.float()[None, None]
        scale = volume.shape[0] / to
        taps = torch.exp(-0.5 * (torch.arange(-2, 3) / (0.45 * scale)) ** 2)
        taps = taps / taps.sum()
        for axis in range(3):
            shape = [1, 1, 1, 1, 1]
            shape[2 + axis] = 5
            pad = [0, 0, 0]
            pad[axis] = 2
            x = F.conv3d(x, taps.view(shape), padding=pad)
        x = F.interpolate(x, size=(to, to, to), mode="trilinear", align_corners=False)
        return x[0, 0].round().to(torch.int16)

    def __len__(self):
        return len(self.order)

    def __getitem__(self, index):
        n = int(self.order[index])
        volume = self.volumes[n]
        if volume.shape[0] != 48:
            volume = self.resample(volume)
        x = volume.float().clamp(-1000, 400).add(300).div(700)
        return self.turned(x), self.labels[n]

    @staticmethod
    def turned(x):
        """The cube in the middle, turned at random and moved by up to two voxels."""
        rotation, _ = torch.linalg.qr(torch.randn(3, 3))
        place = torch.cat([rotation * SIDE / 48, torch.rand(3, 1) / 6 - 1 / 12], dim=1)
        grid = F.affine_grid(place[None], (1, 1, SIDE, SIDE, SIDE), align_corners=False)
        return F.grid_sample(x[None, None], grid, align_corners=False)[0]


class NoduleNet(nn.Sequential):
    def __init__(self, width):
        super().__init__(
            nn.Conv3d(1, width, 3, padding=1),
            nn.BatchNorm3d(width),
            nn.ReLU(),
            nn.MaxPool3d(2),
            nn.Conv3d(width, 2 * width, 3, padding=1),
            nn.BatchNorm3d(2 * width),
            nn.ReLU(),
            nn.AdaptiveAvgPool3d(2),
            nn.Flatten(),
            nn.Linear(16 * width, 2),
        )


def run_epoch(model, loader, optimizer, report_every):
    right = seen = 0
    for step, (cubes, labels) in enumerate(loader, 1):
        scores = model(cubes)
        loss = F.cross_entropy(scores, labels, label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        right += (scores.detach().argmax(1) == labels).sum()
        seen += len(labels)
        if step % report_every == 0:
            print(f"{step:5d}/{len(loader)}  loss {loss.item():.3f}  accuracy {int(right) / seen:.3f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=640)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--width", type=int, default=6)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--scans", type=int, default=240)
    parser.add_argument("--resampled", action="store_true", help="bring all scans to the common grid at the start")
    args = parser.parse_args()
    torch.manual_seed(3)
    torch.set_num_threads(1)
    scans = Scans(args.scans, args.steps * args.batch, args.resampled)
    loader = DataLoader(scans, batch_size=args.batch, num_workers=args.workers, drop_last=True)
    model = NoduleNet(args.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    run_epoch(model, loader, optimizer, report_every=80)


if __name__ == "__main__":
    main()

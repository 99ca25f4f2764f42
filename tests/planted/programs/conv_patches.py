"""Segments patches of satellite pictures with a small U-Net."""

import argparse

import torch
from torch import nn


def double(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        nn.ReLU(),
    )


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1 = double(4, 16)
        self.down2 = double(16, 32)
        self.bottom = double(32, 64)
        self.up2 = nn.ConvTranspose2d(64, 32, 2, stride=2)
        self.merge2 = double(64, 32)
        self.up1 = nn.ConvTranspose2d(32, 16, 2, stride=2)
        self.merge1 = double(32, 16)
        self.head = nn.Conv2d(16, 3, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(nn.functional.max_pool2d(a, 2))
        c = self.bottom(nn.functional.max_pool2d(b, 2))
        b = self.merge2(torch.cat([self.up2(c), b], dim=1))
        a = self.merge1(torch.cat([self.up1(b), a], dim=1))
        return self.head(a)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(12)
    patches = torch.randn(64, 4, 64, 64)
    classes = nn.functional.avg_pool2d(patches[:, :3], 5, stride=1, padding=2).argmax(dim=1)
    net = UNet()
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    for step in range(args.steps):
        chosen = torch.randint(0, len(patches), (args.batch_size,))
        loss = nn.functional.cross_entropy(net(patches[chosen]), classes[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 19:
            print(f"step {step + 1}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

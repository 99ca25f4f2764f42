"""An MLP-Mixer on small pictures, compiled."""

import argparse

import torch
from torch import nn


class MixerLayer(nn.Module):
    def __init__(self, patches, width):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(patches, 2 * patches), nn.GELU(), nn.Linear(2 * patches, patches))
        self.norm2 = nn.LayerNorm(width)
        self.channels = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self, width=96, layers=2):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.layers = nn.Sequential(*[MixerLayer(64, width) for _ in range(layers)])
        self.head = nn.Linear(width, 10)

    def forward(self, pictures):
        x = self.patches(pictures).flatten(2).transpose(1, 2)
        return self.head(self.layers(x).mean(dim=1))


parser = argparse.ArgumentParser()
parser.add_argument("--compiler", default="aot_eager")
parser.add_argument("--steps", type=int, default=150)
args = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(9)
pictures = torch.randn(512, 3, 32, 32)
labels = pictures.mean(dim=(2, 3)).argmax(dim=1)
model = torch.compile(Mixer(), backend=args.compiler)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(args.steps):
    chosen = torch.randint(0, 512, (32,))
    loss = nn.functional.cross_entropy(model(pictures[chosen]), labels[chosen])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if (step + 1) % 50 == 0:
        print(f"step {step + 1}: {loss.item():.4f}")

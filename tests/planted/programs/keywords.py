"""Recognises spoken keywords: log-mel spectrograms, a convolution and a GRU."""

import argparse
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

RATE = 16_000
WORDS = ["yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go"]


def mel_bank(bands, bins):
    """Triangular filters, bands x bins."""
    top = 2595 * np.log10(1 + RATE / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, top, bands + 2) / 2595) - 1)
    freqs = np.linspace(0, RATE / 2, bins)
    rise = (freqs - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    fall = (edges[2:, None] - freqs) / (edges[2:] - edges[1:-1])[:, None]
    return torch.from_numpy(np.minimum(rise, fall).clip(0).astype(np.float32))


class SpokenWords(Dataset):
    """Clips of one second; `length` draws from them."""

    def __init__(self, clips, length, bands=40, cache=False, seed=0):
        self.rng = np.random.default_rng(seed)
        self.length = length
        self.window = torch.hann_window(512)
        self.bank = mel_bank(bands, 257)
        self.targets = self.rng.integers(0, len(WORDS), size=clips)
        self.clips = [self.speak(word) for word in self.targets]
        echo = torch.exp(-torch.arange(RATE) / (RATE * 0.08))
        self.room = torch.from_numpy(self.rng.standard_normal(RATE).astype(np.float32)) * echo
        self.order = self.rng.integers(0, clips, size=length)
        self.cache = [self.spectrum(clip) for clip in self.clips] if cache else None

    def speak(self, word):
        t = np.arange(RATE) / RATE
        pitch = 110 * (1 + 0.15 * self.rng.standard_normal())
        glide = pitch * (1 + (word - 4.5) / 12 * t)
        wave = sum(np.sin(2 * np.pi * k * glide * t) / k for k in range(1, 5 + word % 3))
        wave = wave * np.exp(-3 * t) + 0.05 * self.rng.standard_normal(RATE)
        return torch.from_numpy(wave.astype(np.float32))

    def spectrum(self, wave):
        wet = torch.fft.irfft(torch.fft.rfft(wave, 2 * RATE) * torch.fft.rfft(self.room, 2 * RATE))[:RATE]
        wave = wave + 0.3 * wet / wet.abs().max()
        wave = torch.cat([wave[:1], wave[1:] - 0.97 * wave[:-1]])
        parts = torch.stft(wave, 512, hop_length=160, window=self.window, return_complex=True)
        mel = (self.bank @ parts.abs().square() + 1e-6).log()
        (delta,) = torch.gradient(mel, dim=1)
        features = torch.cat([mel, delta])
        return (features - features.mean(1, keepdim=True)) / (features.std(1, keepdim=True) + 1e-5)

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        clip = self.order[i]
        if self.cache is not None:
            return self.cache[clip], self.targets[clip]
        return self.spectrum(self.clips[clip]), self.targets[clip]


class KeywordNet(nn.Module):
    def __init__(self, bands=80, hidden=144):
        super().__init__()
        self.conv = nn.Conv1d(bands, hidden, kernel_size=5, stride=2, padding=2)
        self.norm = nn.LayerNorm(hidden)
        self.gru = nn.GRU(hidden, hidden, batch_first=True)
        self.out = nn.Linear(hidden, len(WORDS))

    def forward(self, features):
        x = self.conv(features).transpose(1, 2)
        x, _ = self.gru(F.gelu(self.norm(x)))
        return self.out(x.mean(1))


@dataclass
class Config:
    steps: int
    batch: int
    lr: float
    print_every: int = 30


class Trainer:
    def __init__(self, model, loader, config):
        self.model, self.loader, self.config = model, loader, config
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr)
        self.step = 0

    def train_step(self, features, targets):
        loss = F.cross_entropy(self.model(features), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def fit(self):
        self.model.train()
        mean = None
        for features, targets in self.loader:
            loss = self.train_step(features, targets)
            mean = loss if mean is None else 0.95 * mean + 0.05 * loss
            self.step += 1
            if self.step % self.config.print_every == 0:
                print(f"[{self.step}/{self.config.steps}] loss {float(mean):.3f}", flush=True)


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", default=150, type=int)
    p.add_argument("--batch", default=32, type=int)
    p.add_argument("--lr", default=2e-3, type=float)
    p.add_argument("--workers", default=1, type=int)
    p.add_argument("--cache", action="store_true", help="keep the spectrograms of all clips in memory")
    return p.parse_args()


if __name__ == "__main__":
    args = parse()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = SpokenWords(clips=200, length=args.steps * args.batch, cache=args.cache)
    loader = DataLoader(data, batch_size=args.batch, num_workers=args.workers, shuffle=True, drop_last=True)
    Trainer(KeywordNet(), loader, Config(args.steps, args.batch, args.lr)).fit()

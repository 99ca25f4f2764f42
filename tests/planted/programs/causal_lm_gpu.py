"""Trains a causal language model on one GPU, with one fault or none: causal_lm_gpu.py [FAULT] [STEPS]."""

import sys
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

WORDS, LENGTH = 8192, 512
FAULT = sys.argv[1] if len(sys.argv) > 1 else "none"
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 45
SMALL = FAULT in ("for-each-parameter", "graphs")


class Text(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        if FAULT == "slow-items":
            time.sleep(0.02)
        return torch.randint(0, WORDS, (LENGTH,), generator=torch.Generator().manual_seed(index))


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.all, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            self.all(self.before(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.wide(self.between(x))


class Model(nn.Module):
    def __init__(self, width, layers, heads):
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, WORDS)

    def forward(self, x):
        x = self.words(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def gradient_norms(model):
    return [float(parameter.detach().float().norm()) for parameter in list(model.parameters())[:60]]


def main():
    torch.manual_seed(0)
    model = (Model(128, 12, 4) if SMALL else Model(1024, 8, 16)).cuda()
    run = torch.compile(model, mode="reduce-overhead") if FAULT == "graphs" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=FAULT != "for-each-parameter", foreach=False)
    loader = DataLoader(
        Text(),
        batch_size=4 if SMALL else 32,
        num_workers=1 if FAULT == "slow-items" else 4,
        pin_memory=FAULT != "pageable",
        persistent_workers=True,
    )
    features = torch.randn(64 << 20)
    if FAULT != "pageable":
        features = features.pin_memory()
    copy_stream = torch.cuda.Stream()
    for number, words in enumerate(loader):
        if number == STEPS:
            break
        words = words.cuda(non_blocking=True)
        if FAULT == "pageable":
            features.cuda(non_blocking=True)
        elif FAULT == "second-stream":
            with torch.cuda.stream(copy_stream):
                features.cuda(non_blocking=True)
        with torch.autocast("cuda", torch.bfloat16):
            guess = run(words[:, :-1])
        loss = F.cross_entropy(guess.reshape(-1, WORDS).float(), words[:, 1:].reshape(-1))
        if FAULT == "norms":
            gradient_norms(model)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if FAULT == "emptied":
            torch.cuda.empty_cache()
    print(f"loss {float(loss.detach()):.2f}")


if __name__ == "__main__":
    main()

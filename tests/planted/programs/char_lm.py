"""A character model of two causal convolutions, on generated text."""

import argparse
import math

import torch
from torch import nn

TEXT = " ".join(f"{n} squared is {n * n} and cubed is {n * n * n}." for n in range(1, 2000))
CHARACTERS = sorted(set(TEXT))


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embed = nn.Embedding(len(CHARACTERS), width)
        self.near = nn.Conv1d(width, width, 3)
        self.far = nn.Conv1d(width, width, 3, dilation=3)
        self.out = nn.Linear(width, len(CHARACTERS))

    def forward(self, x):
        y = self.embed(x).transpose(1, 2)
        y = torch.relu(self.near(nn.functional.pad(y, (2, 0))))
        y = torch.relu(self.far(nn.functional.pad(y, (6, 0))))
        return self.out(y.transpose(1, 2))


class Watch:
    """Sizes of the gradients of a model, for the log."""

    def __init__(self, model):
        self.spread = {}
        for name, parameter in model.named_parameters():
            parameter.register_hook(self.observer(name))

    def observer(self, name):
        def observe(gradient):
            values = gradient.flatten().tolist()
            mean = sum(values) / len(values)
            self.spread[name] = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))

        return observe

    def largest(self):
        return max(self.spread.items(), key=lambda item: item[1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--watch", choices=["gradients", "nothing"], default="gradients")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--steps", type=int, default=150)
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(1)
    index = {character: i for i, character in enumerate(CHARACTERS)}
    text = torch.tensor([index[character] for character in TEXT])
    model = Model(args.width)
    watch = Watch(model) if args.watch == "gradients" else None
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(args.steps):
        starts = torch.randint(0, len(text) - 33, (24,))
        chunk = torch.stack([text[start : start + 33] for start in starts.tolist()])
        logits = model(chunk[:, :-1])
        loss = nn.functional.cross_entropy(logits.reshape(-1, len(CHARACTERS)), chunk[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step}: {loss.item():.3f} nats", *(watch.largest() if watch else ()))


if __name__ == "__main__":
    main()

"""A small convolutional network that learns scikit-learn's handwritten digits, in a few seconds on a CPU.

It has a fault on purpose, for `stepscope explain` to find: `Digits` turns each digit by itself, on the process that trains.
"""

# torch's annotations are incomplete.
# mypy: allow-untyped-calls
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import stepscope as sc

BATCH = 32
TESTED = 360
"""Digits, a fifth of all, that the network does not learn from."""


TURN = 10.0
"""Degrees by which a digit is turned, at most."""

SCALE = 8
"""So many times as large a digit is turned, so that it stays sharp: this is what takes long."""


class Iteration(msgspec.Struct, frozen=True):
    """One step of training."""

    epoch: int
    """Number of the epoch, from 0."""
    loss: float


class Digits(Dataset[tuple[Tensor, Tensor]]):
    """Digits, each turned by some degrees every time that it is asked for."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images = images
        self.labels = labels
        self._random = random.Random(0)
        # scipy has no types, and is there with scikit-learn.
        self._scipy: Any = importlib.import_module("scipy.ndimage")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """One digit and its label."""
        degrees = self._random.uniform(-TURN, TURN)
        large = self._scipy.zoom(self.images[index, 0].numpy(), SCALE)
        turned = torch.from_numpy(self._scipy.rotate(large, degrees, reshape=False))
        return nn.functional.avg_pool2d(turned.unsqueeze(0), SCALE), self.labels[index]


class Training:
    """The network, its data and its optimizer.

    Args:
        seed: of the weights and of the order of the data; the same seed gives the same result.
    """

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        torch.set_num_threads(1)  # the tensors are too small for more to help
        # scikit-learn has no types.
        digits: Any = importlib.import_module("sklearn.datasets").load_digits()
        images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
        labels = torch.tensor(digits.target)
        shuffled = torch.randperm(len(labels))
        learned, tested = shuffled[TESTED:], shuffled[:TESTED]
        self.loader = DataLoader(Digits(images[learned], labels[learned]), batch_size=BATCH, shuffle=True)
        self.tested = TensorDataset(images[tested], labels[tested])
        self.network = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, 10),
        )
        self._optimizer = torch.optim.Adam(self.network.parameters(), lr=2e-3)

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        return len(self.loader)

    def run(self, epochs: int, step: Callable[[], None]) -> Iterator[Iteration]:
        """Trains.

        Args:
            epochs: how often all data is gone through.
            step: called at the end of each iteration, as `Profiler.step` wants to be.
        """
        for epoch in range(epochs):
            for images, labels in self.loader:
                loss = self._learn(images, labels)
                step()
                yield Iteration(epoch, loss)

    def _learn(self, images: Tensor, labels: Tensor) -> float:
        with sc.span("forward"):
            loss = nn.functional.cross_entropy(self.network(images), labels)
        with sc.span("backward"):
            self._optimizer.zero_grad()
            loss.backward()
        self._optimizer.step()
        value = loss.item()
        sc.counter("loss", value)
        return value

    def accuracy(self) -> float:
        """Share of the tested digits that the network recognises."""
        images, labels = self.tested.tensors
        with torch.inference_mode():
            return float((self.network(images).argmax(1) == labels).float().mean())

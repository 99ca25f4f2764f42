"""Trainings with Composer; in a module of their own, as the model derives from Composer's class, and so imports it."""

# Composer is not among what the types are checked with.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import stepscope as sc

torch: Any = import_module("torch")
# Of torchvision there are no wheels from PyPI for torch without CUDA: its operators are missing, of which Composer needs
# none. It is imported when two of them have a name.
_operators = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _operators.define(f"{_name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")

composer: Any = import_module("composer")
Model: Any = composer.ComposerModel


class Line(Model):  # type: ignore[misc]
    """A line through random points."""

    def __init__(self, happens: Mapping[int, Callable[[], object]]) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.happens = happens
        self.calls = -1

    def forward(self, batch: Any) -> Any:
        return self.layer(batch[0])

    def loss(self, outputs: Any, batch: Any, *rest: Any, **more: Any) -> Any:
        self.calls += 1
        self.happens.get(self.calls, lambda: None)()
        with sc.span("loss"):
            return (outputs - batch[1]).square().mean()

    def eval_forward(self, batch: Any, outputs: Any = None) -> Any:
        return self.forward(batch)

    def get_metrics(self, is_train: bool = False) -> dict[str, Any]:
        return {}


def data(batches: int, size: int) -> Any:
    """So many batches of so many points."""
    points = torch.utils.data.TensorDataset(torch.rand(size * batches, 4), torch.rand(size * batches, 1))
    return torch.utils.data.DataLoader(points, batch_size=size)


def fit(
    *,
    happens: Mapping[int, Callable[[], object]] | None = None,
    batches: int = 8,
    epochs: int = 1,
    accumulated: int = 1,
    times: int = 1,
    **given: Any,
) -> Any:
    """Trains on the CPU, closes the trainer, whatever happens, and returns it.

    Args:
        happens: what is called in a microbatch, by its number in the training.
        batches: batches of an epoch.
        epochs: epochs.
        accumulated: microbatches of a batch, two points in each.
        times: how often the training is started, each going on where the one before ended.
        given: more for Composer's trainer.
    """
    model = Line(happens or {})
    settings: dict[str, Any] = {
        "max_duration": f"{epochs}ep",
        "device": "cpu",
        "run_name": "small",
        "progress_bar": False,
        "device_train_microbatch_size": 2,
        "train_dataloader": data(batches, 2 * accumulated),
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    trainer = composer.Trainer(model=model, optimizers=optimizer, **{**settings, **given})
    try:
        trainer.fit()
        for _ in range(times - 1):
            trainer.fit(duration=f"{epochs}ep")
    finally:
        trainer.close()
    return trainer

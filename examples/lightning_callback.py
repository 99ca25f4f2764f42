"""Traces Lightning's Trainer: one callback, and a window of 25 updates is in `run/fit`."""

# torch's annotations are incomplete.
# mypy: allow-untyped-calls
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from typing import Any

# Before torch: its operators arrive live then, which costs less.
import stepscope as sc
from stepscope.lightning import StepscopeCallback

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset


class Line(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch: list[torch.Tensor], index: int) -> Any:
        points, values = batch
        with sc.span("loss"):
            return (self.layer(points) - values).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> None:
    points = torch.rand(640, 2)
    loader = DataLoader(TensorDataset(points, points.sum(1, keepdim=True)), batch_size=8)
    tracing = StepscopeCallback(output_dir="run")
    trainer = Trainer(
        max_epochs=1, accelerator="cpu", accumulate_grad_batches=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[tracing],
    )  # fmt: skip
    trainer.fit(Line(), loader)
    if tracing.profiler is not None:
        print(tracing.profiler.summary(top=8))
        print(tracing.profiler.report())


if __name__ == "__main__":
    main()

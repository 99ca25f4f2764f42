"""Models for Lightning's Trainer; in a module of their own, as they derive from Lightning's class, and so import it."""

# Annotations of torch and Lightning are incomplete.
# pyright: reportUnknownMemberType=false
# mypy: allow-untyped-calls

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule

import stepscope as sc
from tests.support.arming import arm_here


class Tiny(LightningModule):
    """A line through random points."""

    def __init__(self, fails_at: int | None = None, order_at: int | None = None) -> None:
        """Args: the batch that raises; the batch in which an operator asks for two steps; both from 0."""
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.fails_at = fails_at
        self.order_at = order_at

    def training_step(self, batch: Any, index: int) -> Any:
        if index == self.fails_at:
            raise ZeroDivisionError("the training fails")
        if index == self.order_at:
            assert arm_here(2)
        with sc.span("forward"):
            return self.layer(batch[0]).square().mean()

    def validation_step(self, batch: Any, index: int) -> None:
        self.layer(batch[0])

    def test_step(self, batch: Any, index: int) -> None:
        if index == self.fails_at:
            raise ZeroDivisionError("the test fails")
        self.layer(batch[0])

    def predict_step(self, batch: Any, index: int) -> Any:
        return self.layer(batch[0])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)

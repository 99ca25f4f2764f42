"""A rank of a job whose stages are those of Lightning's Trainer, all with one callback: see `tests/support/control_rank.py`.

A stage is called by what the Trainer does, and a number where it does that again: `fit`, `validate`, `test`, `fit2`.
"""

# Annotations of torch and Lightning are incomplete.
# pyright: reportUnknownMemberType=false
# mypy: allow-untyped-calls

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
from lightning.pytorch import Trainer
from torch.utils.data import DataLoader, IterableDataset

import stepscope
from stepscope.lightning import StepscopeCallback
from stepscope.runtime.windows.window import Window
from tests.support.control_rank import GONE, LEAD, STAGE, RankSettings, Steps, is_notified, wait_for, writes_to
from tests.support.lightning_models import Tiny


class Batches(IterableDataset[Any]):
    """Goes on until the stage is to end, and keeps up with the other ranks."""

    def __init__(self, settings: RankSettings, stage: str, steps: Steps, begin: int) -> None:
        self._settings, self._stage, self._steps, self._begin = settings, stage, steps, begin

    def __iter__(self) -> Iterator[Any]:
        directory, rank = Path(self._settings.directory), self._settings.rank
        at = self._begin
        (directory / f"ready-{rank}").touch()
        (directory / f"begun-{self._stage}-{rank}").touch()
        while not is_notified(self._settings, "end", self._stage):
            time.sleep(self._settings.step_ms / 1000)
            at += 1
            self._steps.put(rank, at)
            while self._steps.least() + LEAD < at and not is_notified(self._settings, "end", self._stage):
                time.sleep(0.001)
            yield [torch.ones(2, 4)]


def main(settings: RankSettings) -> None:
    """Runs the stages."""
    torch.set_num_threads(1)
    directory, now = Path(settings.directory), [""]
    os.environ.update(RANK=str(settings.rank), WORLD_SIZE=str(settings.world), STEPSCOPE_JOB=settings.job)
    steps = Steps(directory / "steps", settings.world)
    with (directory / f"windows-{settings.rank}").open("a", buffering=1) as windows:

        def ready(window: Window) -> None:
            writes_to(windows.write, now[0])(window)

        callback = StepscopeCallback(
            control=stepscope.Control(path=settings.directory, poll=0.1, patience=settings.patience),
            output_dir=str(directory / "out"),
            tensorboard=False,
            on_trace_ready=ready,
        )
        for number, stage in enumerate(settings.stages):
            wait_for(settings, "go", stage if number else "")
            now[0] = stage
            trainer = Trainer(
                accelerator="cpu",
                max_epochs=1,
                limit_val_batches=0 if stage.startswith("fit") else None,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                callbacks=[callback],
            )
            loader = DataLoader(Batches(settings, stage, steps, number * STAGE), batch_size=None)
            run = getattr(trainer, stage.rstrip("0123456789"))
            run(Tiny(), loader)
            (directory / f"ended-{stage}-{settings.rank}").touch()
        callback.raise_errors()
    steps.put(settings.rank, GONE)


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=RankSettings))

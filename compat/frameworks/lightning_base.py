"""The classes of Lightning that ours are made of: of `lightning`, or of the older `pytorch_lightning`."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from stepscope.compat.frameworks import raise_missing

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.profilers import Profiler
else:
    try:
        # Both may be installed, and neither takes the other's callbacks: the one that the program uses counts.
        if sys.modules.get("pytorch_lightning") and "lightning.pytorch" not in sys.modules:
            from pytorch_lightning import Callback, LightningModule, Trainer
            from pytorch_lightning.profilers import Profiler
        else:
            from lightning.pytorch import Callback, LightningModule, Trainer
            from lightning.pytorch.profilers import Profiler
    except ModuleNotFoundError as error:
        if find_spec("pytorch_lightning") is None:
            raise_missing(error, "lightning", "Lightning", "lightning")
        from pytorch_lightning import Callback, LightningModule, Trainer
        from pytorch_lightning.profilers import Profiler

__all__ = ["Callback", "LightningModule", "Profiler", "Trainer", "log_directory", "placement"]


def log_directory(log_dir: str | None) -> str | None:
    """Default directory of runs: next to Lightning's logs."""
    return None if log_dir is None else f"{log_dir}/stepscope"


def placement(trainer: Trainer) -> tuple[int | None, int | None]:
    """(rank, world size) of a distributed training; `None` where there is but one process, so the environment is asked."""
    size = int(trainer.world_size)
    return (int(trainer.global_rank), size) if size > 1 else (None, None)

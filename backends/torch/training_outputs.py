"""Signals of a training's outputs: checkpoints (`torch.save`) and calls of TensorBoard's `SummaryWriter`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from stepscope.backends.torch.functions import ReplacesTorch
from stepscope.runtime import _core
from stepscope.runtime.display.code_places import caller
from stepscope.runtime.observers import observing


class Checkpoints(ReplacesTorch):
    """`torch.save` as a span."""

    signal = "checkpoints"
    module = "torch"

    def replace_all(self) -> None:
        """Replaces the function, under both of its names."""
        torch: Any = sys.modules["torch"]
        self.replace("save", partial(_in_span, "torch.save", "checkpoint"), torch, torch.serialization)


class Logging(ReplacesTorch):
    """Calls of `SummaryWriter` as spans."""

    signal = "logging"
    module = "torch.utils.tensorboard.writer"

    def replace_all(self) -> None:
        """Replaces the methods that write."""
        writer: Any = sys.modules[self.module].SummaryWriter
        names: list[str] = dir(writer)
        for name in names:
            if name.startswith("add_") or name == "flush":
                self.replace(name, partial(_in_span, f"SummaryWriter.{name}", "logging"), writer)


def _in_span(name: str, category: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if not _core.recording() & _core.RECORD_EVENTS:
            return original(*args, **kwargs)
        with _core.span(name, category=category, place=caller()):
            return original(*args, **kwargs)

    return call


observing.add(Checkpoints())
observing.add(Logging())

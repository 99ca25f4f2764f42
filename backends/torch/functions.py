"""Signals that replaced functions of torch read. torch may be imported late, or never."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from stepscope.backends.torch.importing import TorchImport
from stepscope.runtime import _core
from stepscope.runtime.accounting.error_log import error_text
from stepscope.runtime.display.code_places import caller
from stepscope.runtime.observers import observing
from stepscope.runtime.observers.observing import SignalSource
from stepscope.runtime.threads.user_code import from_signal_handler


class ReplacesTorch(SignalSource):
    """Replaces functions of torch as soon as it is imported, and restores them."""

    module = ""

    def __init__(self) -> None:
        super().__init__()
        self._watch = TorchImport(self._imported, self.module)

    def begin(self) -> None:
        """Replaces them now, or when torch is imported."""
        if not self._undo:
            self._watch.watch()

    def end(self) -> None:
        """Restores the functions that no other code has replaced since."""
        self._watch.forget()
        super().end()

    def forget(self) -> None:
        """Replaced functions stay replaced: a worker of a DataLoader is a forked child."""

    def _imported(self) -> None:
        try:
            self.replace_all()
        except Exception as error:
            if from_signal_handler(error):
                raise
            self.note = f"off: {error_text(error)}"

    def replace_all(self) -> None:
        raise NotImplementedError


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

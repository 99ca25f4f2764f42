"""Signals that are read by functions put in the place of torch's. torch may be imported late, or never."""

from __future__ import annotations

from stepscope.backends.torch.importing import TorchImport
from stepscope.runtime.accounting.error_log import error_text
from stepscope.runtime.observers.observing import SignalSource
from stepscope.runtime.threads.user_code import from_signal_handler


class ReplacesTorch(SignalSource):
    """Replaces functions of torch as soon as it is there, and puts them back."""

    module = ""

    def __init__(self) -> None:
        super().__init__()
        self._watch = TorchImport(self._imported, self.module)

    def begin(self) -> None:
        """Replaces them now, or when torch is imported."""
        if not self._undo:
            self._watch.watch()

    def end(self) -> None:
        """Puts back what nobody else has replaced since."""
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

"""A backend that keeps the runtime's loop from its work, as a load that holds the interpreter may for a while."""

from __future__ import annotations

import threading

import stepscope as sc
from stepscope.backends.simulated.scripted import ScriptedBackend


class BlockingBackend(ScriptedBackend):
    """Blocks the loop when a window has its first event, until it is let go."""

    def __init__(self) -> None:
        super().__init__(name="blocking")
        self.blocks, self.free = threading.Event(), threading.Event()

    def derive(self, batch: sc.exporters.EventBatch) -> None:
        """Waits."""
        self.blocks.set()
        assert self.free.wait(60)

    def block(self) -> None:
        """Records an event, and returns when the loop is blocked."""
        sc.instant("blocks")
        assert self.blocks.wait(30)

"""A backend that keeps the runtime's loop from its work, as a load that holds the interpreter may for a while."""

from __future__ import annotations

import threading

from stepscope.backends.scripted import ScriptedBackend
from stepscope.runtime.schedule.action import ProfilerAction


class BlockingBackend(ScriptedBackend):
    """Blocks the loop when a window begins, until it is let go."""

    def __init__(self) -> None:
        super().__init__(name="blocking")
        self.blocks, self.free = threading.Event(), threading.Event()

    def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        super().transition(before, after, at)
        if after.records:
            self.blocks.set()
            assert self.free.wait(60)

"""Records asyncio tasks without annotations, of the loops that `annotations/asyncio_tasks.py` watches."""

from __future__ import annotations

from stepscope.runtime import _core
from stepscope.runtime.observers import observing
from stepscope.runtime.observers.loop_callbacks import LoopCallbacks
from stepscope.runtime.observers.observing import SignalSource
from stepscope.runtime.observers.queue_lengths import QueueLengths


class TaskRuns(SignalSource):
    """Records each task as a span, with its waiting time; slow callbacks that are no tasks; and the lengths of queues."""

    signal = "tasks"

    def __init__(self) -> None:
        super().__init__()
        self.queues = QueueLengths()
        self.callbacks = LoopCallbacks(self._set_note)

    def begin(self) -> None:
        """Has the core record tasks, and wraps what makes queues and calls callbacks."""
        _core.record_tasks(True)
        self.queues.begin()
        self.callbacks.begin()

    def end(self) -> None:
        """Ends that, and restores what was wrapped, unless other code has replaced it since."""
        _core.record_tasks(False)
        self.queues.end()
        self.callbacks.end()

    def _set_note(self, note: str) -> None:
        self.note = note


TASKS = TaskRuns()
observing.add(TASKS)

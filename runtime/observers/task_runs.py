"""Tasks of asyncio that are recorded without annotations: every loop is watched from its begin on."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

from stepscope.runtime import _core
from stepscope.runtime.annotations import asyncio_tasks
from stepscope.runtime.loop_threads.lasting_loop import is_lasting
from stepscope.runtime.observers import observing
from stepscope.runtime.observers.loop_callbacks import LoopCallbacks
from stepscope.runtime.observers.observing import SignalSource
from stepscope.runtime.observers.queue_lengths import QueueLengths

_OWNERS = ((asyncio.Runner, "run"), (asyncio.BaseEventLoop, "run_forever"))
"""Where loops begin to run: `asyncio.run`, whatever its loop is, and loops of asyncio that are run by hand."""


class TaskRuns(SignalSource):
    """Each task as a span, with the time in which it waits inside of that; callbacks that are no tasks and take long; and how
    long the loop's queues are."""

    signal = "tasks"

    def __init__(self) -> None:
        super().__init__()
        self._undo: list[Callable[[], None]] = []
        self.queues = QueueLengths()
        self.callbacks = LoopCallbacks(self._say)

    def begin(self) -> None:
        """Wraps what runs loops."""
        _core.record_tasks(True)
        for owner, name in _OWNERS:
            self._replace(owner, name)
        self.queues.begin()
        self.callbacks.begin()

    def end(self) -> None:
        """Puts it back, where nobody else has replaced it since."""
        _core.record_tasks(False)
        self.queues.end()
        self.callbacks.end()
        while self._undo:
            self._undo.pop()()

    def _say(self, note: str) -> None:
        self.note = note

    def _replace(self, owner: Any, name: str) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def run(runs: Any, *args: Any, **kwargs: Any) -> Any:
            loop = runs.get_loop() if isinstance(runs, asyncio.Runner) else runs
            if self.users and not is_lasting(loop):
                asyncio_tasks.watch_loop(loop)
            return original(runs, *args, **kwargs)

        def put_back() -> None:
            if getattr(owner, name) is run:
                setattr(owner, name, original)

        setattr(owner, name, run)
        self._undo.append(put_back)


TASKS = TaskRuns()
observing.add(TASKS)

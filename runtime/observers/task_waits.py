"""Records how many asyncio tasks wait at which place of the program."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from types import CoroutineType, GeneratorType
from typing import Any

from stepscope.runtime import _core
from stepscope.runtime.annotations.asyncio_tasks import running_loops
from stepscope.runtime.display.code_places import described_frame, in_library
from stepscope.runtime.events import clock, strings, tracks

WAITS = "task waits"
"""Category of the numbers of waiting tasks, as counters with names such as `handle: read (/p/server.py:12)`: the function of the task, and
the place."""
MOST_TASKS = 256
"""The most tasks of a loop that are looked at each time."""
MOST_AWAITS = 64
"""The most coroutines of a task, each awaited by the one before, that are looked at."""
COST = 0.01
"""Share of the time that the readings may take: very many tasks are looked at less often than once a second."""


class TaskWaits:
    """Looks at the tasks of the loops that run, from another thread."""

    def __init__(self) -> None:
        self._due = 0

    def record(self) -> None:
        """Records the counters, unless the last time was so short a while ago that they would cost more than `COST`."""
        begin = clock.now()
        if begin < self._due:
            return
        counts: Counter[str] = Counter()
        with contextlib.suppress(
            Exception
        ):  # tasks and loops may begin meanwhile, and those of the program's own types raise anything
            for loop in running_loops():
                tasks = list(asyncio.all_tasks(loop))
                counts.update(filter(None, map(_wait_of, tasks[:: len(tasks) // MOST_TASKS + 1])))
        now, track, category = clock.now(), tracks.process(), strings.category(WAITS)
        for name, count in counts.items():
            _core.put(True, strings.intern(name), category, track, now, float(count), b"")
        self._due = begin + int((clock.now() - begin) / COST)


def _wait_of(task: asyncio.Task[Any]) -> str:
    """The function of a task and the innermost place of the program at which it waits; empty if it does not wait, or is not recorded."""
    coroutine: Any = None
    with contextlib.suppress(Exception):  # a task type of the program may lack any attribute
        coroutine = task.get_coro()
    if type(coroutine) is not _core.Coroutine or getattr(coroutine, "cr_await", None) is None:
        return ""
    name = getattr(coroutine, "__qualname__", "task")
    place, awaited = "", coroutine
    for _ in range(MOST_AWAITS):
        if isinstance(awaited, CoroutineType):  # as the watched one says that it is
            frame, awaited = awaited.cr_frame, awaited.cr_await
        elif isinstance(awaited, GeneratorType):
            frame, awaited = awaited.gi_frame, awaited.gi_yieldfrom
        else:
            break
        if frame is not None and not in_library(frame.f_code.co_filename):
            place = described_frame(frame)
    return f"{name}: {place}" if place else ""

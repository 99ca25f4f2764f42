"""Tasks and what they start: what is watched while a profiler is open; and which task or greenlet runs in a thread."""

from __future__ import annotations

from typing import Literal

from stepscope.runtime import _core
from stepscope.runtime.annotations import asyncio_tasks, executors, greenlets, trio_tasks
from stepscope.runtime.threads.user_code import from_signal_handler


def watch() -> None:
    """Watches thread pools from now on, and the tasks of what loop runs in this thread.

    Of other loops, and of later ones, the tasks are watched from the moment on at which one of them records.
    """
    executors.watch()
    asyncio_tasks.watch()
    trio_tasks.watch()


def release() -> None:
    """Leaves loops and thread pools as they were. Any thread."""
    executors.release()
    asyncio_tasks.release()
    trio_tasks.release()


MAX_NAMES = 1 << 14
"""Names of tasks that are kept: a program that numbers its tasks must not fill the process's table of names."""

_names: set[str] = set()


def _running() -> tuple[str, int, _core.Coroutine | None] | None | Literal[False]:
    """What the core is told of the task that runs in this thread; False: it cannot be had."""
    try:
        found = asyncio_tasks.running() or trio_tasks.running() or greenlets.running()
    except Exception as error:  # a type of the program's own may lack anything; the core counts it
        if from_signal_handler(error):
            raise
        return False
    if found is None or found[0] in _names:
        return found
    if len(_names) < MAX_NAMES:
        _names.add(found[0])
        return found
    return "task", found[1], found[2]


_core.set_task_lookup(_running)

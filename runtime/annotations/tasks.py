"""Watches tasks and thread pools while a profiler is open, and identifies the task or greenlet that runs in a thread."""

from __future__ import annotations

from typing import Literal

from stepscope.runtime import _core
from stepscope.runtime.annotations import asyncio_tasks, executors, trio_tasks
from stepscope.runtime.threads import greenlets
from stepscope.runtime.threads.user_code import from_signal_handler


def watch() -> None:
    """Watches thread pools, and tasks that are made from now on. Tasks of trio that exist are watched as well.

    Loops that asyncio does not run, such as uvloop's own `run_until_complete`, are watched as soon as a task of them records.
    """
    executors.watch()
    asyncio_tasks.watch()
    trio_tasks.watch()


def release() -> None:
    """Restores loops and thread pools. Any thread may call."""
    executors.release()
    asyncio_tasks.release()
    trio_tasks.release()


MAX_NAMES = 1 << 14
"""Limit of task names: a program that numbers its tasks must not fill the process's table of names."""

_names: set[str] = set()


def _running() -> tuple[str, int, _core.Coroutine | None] | None | Literal[False]:
    """Name, number and coroutine of the running task, for the core; `None` without one, False if it cannot be read."""
    try:
        found = asyncio_tasks.running() or trio_tasks.running() or greenlets.running()
    except Exception as error:  # a task type of the program may lack any attribute; the core counts it
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

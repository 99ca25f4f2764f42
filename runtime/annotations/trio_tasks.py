"""Watches the coroutines of trio tasks, if the program has imported trio."""

from __future__ import annotations

import sys
import weakref
from typing import Any

from stepscope.runtime import _core


def _lowlevel() -> Any:
    """`trio.lowlevel`; `None` if the program has not imported trio."""
    return sys.modules.get("trio.lowlevel")


class Watcher:
    """An instrument of a run, which makes the core watch the coroutine of each spawned task."""

    def __init__(self) -> None:
        self.watching = True

    def task_spawned(self, task: Any) -> None:
        """Called in the task that spawns, before the first step of the new one."""
        if self.watching:
            _watch_task(task)
        else:
            _lowlevel().remove_instrument(self)


class FirstStep:
    """An instrument for one step: the one in which watching a task began."""

    def __init__(self, task: Any, watched: _core.Coroutine) -> None:
        self.task = task
        self.watched = watched

    def after_task_step(self, task: Any) -> None:
        """Called when a step has ended."""
        if task is self.task:
            self.watched._paused()  # pyright: ignore[reportPrivateUsage]
            _lowlevel().remove_instrument(self)


_runs: weakref.WeakKeyDictionary[Any, Watcher] = weakref.WeakKeyDictionary()
"""By trio's token of the run."""


def _current() -> Any:
    """The task of this thread, or `None`."""
    trio = _lowlevel()
    if trio is None:
        return None
    try:
        return trio.current_task()
    except RuntimeError:
        return None


def watch() -> None:
    """Watches the present and future tasks of the trio run of this thread, if there is one."""
    trio, current = _lowlevel(), _current()
    if current is None:
        return
    token = trio.current_trio_token()
    if token in _runs:
        return
    _runs[token] = watcher = Watcher()
    trio.add_instrument(watcher)
    found = [trio.current_root_task()]
    while found:
        task = found.pop()
        found += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
        watched = _watch_task(task)
        if task is current:
            trio.add_instrument(FirstStep(task, watched))


def release() -> None:
    """Stops watching new tasks. Any thread may call."""
    while _runs:
        _runs.popitem()[1].watching = False


def _watch_task(task: Any) -> _core.Coroutine:
    """Replaces the coroutine of a task by a watched one: trio continues the one in `coro`."""
    task.coro = watched = _core.Coroutine(task.coro)
    return watched


def running() -> tuple[str, int, _core.Coroutine | None] | None:
    """Returns name, number and coroutine of the task that runs in this thread; `None` without one."""
    task = _current()
    if task is None:
        return None
    watch()
    return task.name.rpartition(".")[2], id(task), _watch_task(task)

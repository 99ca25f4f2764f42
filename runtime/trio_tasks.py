"""Tasks of trio, where the program has imported it: how their coroutines come to be watched."""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING

from stepscope.runtime import _core

if TYPE_CHECKING:
    import trio


class Watcher:
    """An instrument of a run: gives each task that is spawned a coroutine that the core watches."""

    def __init__(self) -> None:
        self.watching = True

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        """Called in the task that spawns, before the first step of the new one."""
        import trio

        if self.watching:
            _watch_task(task)
        else:
            trio.lowlevel.remove_instrument(self)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


class FirstStep:
    """An instrument for one step: that in which a task came to be watched."""

    def __init__(self, task: trio.lowlevel.Task, watched: _core.Coroutine) -> None:
        self.task = task
        self.watched = watched

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Called when a step has ended."""
        import trio

        if task is self.task:
            self.watched._paused()  # pyright: ignore[reportPrivateUsage]
            trio.lowlevel.remove_instrument(self)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


_runs: weakref.WeakKeyDictionary[trio.lowlevel.TrioToken, Watcher] = weakref.WeakKeyDictionary()


def _current() -> trio.lowlevel.Task | None:
    if "trio" not in sys.modules:
        return None
    import trio

    try:
        return trio.lowlevel.current_task()
    except RuntimeError:
        return None


def watch() -> None:
    """Watches the tasks of the trio run of this thread, if there is one: those that it has and those to come."""
    current = _current()
    if current is None:
        return
    import trio

    token = trio.lowlevel.current_trio_token()
    if token in _runs:
        return
    _runs[token] = watcher = Watcher()
    trio.lowlevel.add_instrument(watcher)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    found = [trio.lowlevel.current_root_task()]
    while found:
        task = found.pop()
        if task is None:
            continue
        found += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
        watched = _watch_task(task)
        if task is current:
            trio.lowlevel.add_instrument(FirstStep(task, watched))  # type: ignore[arg-type]  # pyright: ignore


def release() -> None:
    """Watches no further tasks. Any thread."""
    while _runs:
        _runs.popitem()[1].watching = False


def _watch_task(task: trio.lowlevel.Task) -> _core.Coroutine:
    """The coroutine that the core watches of a task: trio takes the next step of what it finds in `coro`."""
    watched = _core.Coroutine(task.coro)
    task.coro = watched  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]
    return watched


def running() -> tuple[str, int, _core.Coroutine | None] | None:
    """Name, number and coroutine of the task that runs in this thread, if one does."""
    task = _current()
    if task is None:
        return None
    watch()
    return task.name.rpartition(".")[2], id(task), _watch_task(task)

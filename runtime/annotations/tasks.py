"""Watches tasks and thread pools while a profiler is open, and identifies the task or greenlet that runs in a thread."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, ParamSpec, TypeVar

from stepscope.runtime import _core
from stepscope.runtime.annotations import asyncio_tasks
from stepscope.runtime.settings.arguments import got
from stepscope.runtime.threads import greenlets
from stepscope.runtime.threads.user_code import from_signal_handler, replace

P = ParamSpec("P")
T = TypeVar("T")

MAX_NAMES = 1 << 14
"""Limit of task names: a program that numbers its tasks must not fill the process's table of names."""

_names: set[str] = set()
_restore: list[Callable[[], None]] = []
"""Restores `ThreadPoolExecutor.submit`."""


def watch() -> None:
    """Watches thread pools, and tasks that are made from now on. Tasks of trio that exist are watched as well.

    Loops that asyncio does not run, such as uvloop's own `run_until_complete`, are watched as soon as a task of them records.
    """
    if not _restore:  # so that `submit`, and so `loop.run_in_executor`, propagates the open span
        replace(_restore, "submit", _under_open_span, ThreadPoolExecutor)
    asyncio_tasks.watch()
    _watch_trio()


def release() -> None:
    """Restores loops and thread pools, and stops watching new tasks. Any thread may call."""
    while _restore:
        _restore.pop()()
    asyncio_tasks.release()
    while _runs:
        _runs.popitem()[1].watching = False


def _running() -> tuple[str, int, _core.Coroutine | None] | None | Literal[False]:
    """Name, number and coroutine of the running task, for the core; `None` without one, False if it cannot be read."""
    try:
        found = asyncio_tasks.running() or _running_trio() or greenlets.running()
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

# thread pools


def _under_open_span(original: Any) -> Any:
    def submit(pool: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        span = _core.current_span()
        if span:
            return original(pool, _core.call_under, span, fn, *args, **kwargs)  # type: ignore[no-any-return]
        return original(pool, fn, *args, **kwargs)  # type: ignore[no-any-return]

    return submit


def propagate(function: Callable[P, T], /) -> Callable[P, T]:
    """Wraps a function so that its spans become children of the span that is open now, in any thread.

    Use it for threads: `threading.Thread(target=propagate(work))`. Tasks, `asyncio.to_thread`, thread pools and copied
    contexts do not need it.

    Args:
        function: a plain function. For an async function it has no effect on the coroutine.

    Returns:
        A function with the same parameters; `function` itself if no span is open or nothing is recorded.

    Raises:
        TypeError: if it is not callable.
    """
    if not callable(function):
        raise TypeError(f"propagate() takes a function, {got(function)}")
    span = _core.current_span()
    if not span:
        return function

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return _core.call_under(span, function, *args, **kwargs)

    return call


# tasks of trio, if the program has imported it


def _lowlevel() -> Any:
    """`trio.lowlevel`; `None` if the program has not imported trio."""
    return sys.modules.get("trio.lowlevel")


class _Watcher:
    """An instrument of a run, which makes the core watch the coroutine of each spawned task."""

    def __init__(self) -> None:
        self.watching = True

    def task_spawned(self, task: Any) -> None:
        """Called in the task that spawns, before the first step of the new one."""
        if self.watching:
            _watch_task(task)
        else:
            _lowlevel().remove_instrument(self)


class _FirstStep:
    """An instrument for one step: the one in which watching a task began."""

    def __init__(self, task: Any, watched: _core.Coroutine) -> None:
        self.task = task
        self.watched = watched

    def after_task_step(self, task: Any) -> None:
        if task is self.task:
            self.watched._paused()  # pyright: ignore[reportPrivateUsage]
            _lowlevel().remove_instrument(self)


_runs: weakref.WeakKeyDictionary[Any, _Watcher] = weakref.WeakKeyDictionary()
"""Runs by trio's token."""


def _trio_task() -> Any:
    """The task of this thread, or `None`."""
    trio = _lowlevel()
    if trio is None:
        return None
    try:
        return trio.current_task()
    except RuntimeError:
        return None


def _watch_trio() -> None:
    """Watches the present and future tasks of the trio run of this thread, if there is one."""
    trio, current = _lowlevel(), _trio_task()
    if current is None:
        return
    token = trio.current_trio_token()
    if token in _runs:
        return
    _runs[token] = watcher = _Watcher()
    trio.add_instrument(watcher)
    found = [trio.current_root_task()]
    while found:
        task = found.pop()
        found += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
        watched = _watch_task(task)
        if task is current:
            trio.add_instrument(_FirstStep(task, watched))


def _watch_task(task: Any) -> _core.Coroutine:
    """Replaces the coroutine of a task by a watched one: trio continues the one in `coro`."""
    task.coro = watched = _core.Coroutine(task.coro)
    return watched


def _running_trio() -> tuple[str, int, _core.Coroutine | None] | None:
    """Returns name, number and coroutine of the task that runs in this thread; `None` without one."""
    task = _trio_task()
    if task is None:
        return None
    _watch_trio()
    return task.name.rpartition(".")[2], id(task), _watch_task(task)

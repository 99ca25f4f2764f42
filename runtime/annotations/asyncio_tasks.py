"""Watches the coroutines of asyncio tasks."""

from __future__ import annotations

import asyncio
import contextlib
import re
import weakref
from collections.abc import Callable, Coroutine
from types import CoroutineType
from typing import Any

from stepscope.runtime import _core
from stepscope.runtime.threads.native_threads import get_ident
from stepscope.runtime.threads.user_code import from_signal_handler

MAX_KINDS = 16
"""Types of tasks with counts of their own in `unwatched`."""

unwatched: dict[str, int] = {}
"""Tasks whose coroutines could not be watched, by type: their suspended time counts as their own."""

_unwatched_tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()

_AUTOMATIC = re.compile(r"Task-\d+|None")
"""Default names. Python 3.13.0 names tasks that a factory makes "None" (`BaseEventLoop.create_task`)."""


_OWN_TASKS = frozenset({"shutdown_asyncgens", "shutdown_default_executor", "_accept_connection2"})
"""Methods of loops that run as tasks."""


class CreateTask:
    """Replaces a loop's `create_task` while the loop is recorded, so that the core watches the coroutines of its tasks.

    It does not use the loop's task factory: anyio starts tasks in another way if that is asyncio's eager one, and the program
    may replace it at any time.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.watching = True
        self.replaced: Callable[..., asyncio.Future[Any]] | None = _attributes(loop).get("create_task")
        """A replacement of other code that was set before; `None` for the method of the loop's class."""
        self._loop = weakref.ref(loop)  # the loop refers to this
        self.ident, self.track = get_ident(), _core.thread_track()
        """The thread that runs the loop."""

    def __call__(self, coroutine: Coroutine[Any, Any, Any], /, **options: Any) -> asyncio.Future[Any]:
        watched: Any = coroutine
        if (
            self.watching
            and not _is_of_asyncio(coroutine)
            and (type(coroutine) is CoroutineType or asyncio.iscoroutine(coroutine))
        ):
            watched = _core.Coroutine(coroutine)
        if self.replaced is not None:
            return self.replaced(watched, **options)
        loop: Any = self._loop()
        task: asyncio.Future[Any] = loop.__class__.create_task(loop, watched, **options)
        return task


def _is_of_asyncio(coroutine: Coroutine[Any, Any, Any]) -> bool:
    """Whether `asyncio.run` or the loop itself makes a task of it, which the program knows nothing of."""
    return getattr(coroutine, "__name__", "") in _OWN_TASKS


def _attributes(loop: asyncio.AbstractEventLoop) -> dict[str, Any]:
    return getattr(loop, "__dict__", {})


_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, CreateTask] = weakref.WeakKeyDictionary()


def watch() -> None:
    """Watches the present and future tasks of the loop that runs in this thread, if there is one.

    The end of the current step of a task is not seen: the task counts as suspended from the loop's next turn on.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return
    watch_loop(loop)


def watch_loop(loop: asyncio.AbstractEventLoop) -> None:
    """The same for a loop that runs in this thread, or is about to."""
    if loop in _loops:
        return
    _loops[loop] = create_task = CreateTask(loop)
    with contextlib.suppress(AttributeError):  # if it cannot be set, each task is watched from its first span on
        setattr(loop, "create_task", create_task)  # noqa: B010 - its type cannot be written
    runs = loop.is_running()
    for task in asyncio.all_tasks(loop):
        _watch_task(task, loop, runs)


def running_loop() -> tuple[int, int] | None:
    """Returns ident and track of a thread with a watched loop that runs. Any thread may call."""
    for loop, create_task in list(_loops.items()):
        if create_task.track and loop.is_running():
            return create_task.ident, create_task.track
    return None


def release() -> None:
    """Restores `create_task` of every loop, unless other code has replaced it since. Any thread may call."""
    while _loops:
        loop, create_task = _loops.popitem()
        create_task.watching = False
        if _attributes(loop).get("create_task") is not create_task:
            continue
        if create_task.replaced is None:
            delattr(loop, "create_task")
        else:
            setattr(loop, "create_task", create_task.replaced)  # noqa: B010


def _watch_task(task: asyncio.Task[Any], loop: asyncio.AbstractEventLoop, runs: bool = True) -> _core.Coroutine | None:
    """Returns the watched coroutine of a task. Begins to watch it if needed; `None` if that is impossible.

    Args:
        task: of the loop.
        loop: of this thread.
        runs: whether the loop is inside of a step of a task.
    """
    runs = runs and task is asyncio.current_task(loop)
    try:
        coroutine: Any = task.get_coro()
        if type(coroutine) is _core.Coroutine:
            return coroutine
        watched = _core.adopt(task, asyncio.Task, runs)
    except Exception as error:
        if from_signal_handler(error):
            raise
        watched = None  # a task type of the program may lack any attribute; it is counted
    if watched is None:
        _count_unwatched(task)
    elif runs:
        loop.call_soon(watched._paused)  # pyright: ignore[reportPrivateUsage]
    return watched


def _count_unwatched(task: asyncio.Task[Any]) -> None:
    try:
        if task in _unwatched_tasks:
            return
        _unwatched_tasks.add(task)
    except TypeError:
        pass  # it has no weak references, so each look-up counts it
    kind = f"{type(task).__module__}.{type(task).__qualname__}"
    kind = kind if kind in unwatched or len(unwatched) < MAX_KINDS else "others"
    unwatched[kind] = unwatched.get(kind, 0) + 1


def running() -> tuple[str, int, _core.Coroutine | None] | None:
    """Returns name, number and coroutine of the task that runs in this thread; `None` without one.

    A task with a default name gets the name of its function, because later tasks with the same name use its row again.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return None
    watch()
    task = asyncio.current_task(loop)
    if task is None:
        return None
    name = task.get_name()
    if _AUTOMATIC.fullmatch(name):
        coroutine: Any = task.get_coro()
        name = getattr(coroutine, "__qualname__", coroutine.__class__.__name__)
    return name, id(task), _watch_task(task, loop)

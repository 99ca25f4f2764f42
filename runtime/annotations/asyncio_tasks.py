"""Tasks of asyncio: how their coroutines come to be watched."""

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
"""Types of tasks that are told apart in `unwatched`."""

unwatched: dict[str, int] = {}
"""Tasks whose coroutines could not be watched, by type: their suspended time counts as their own."""

_unwatched_tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()

_AUTOMATIC = re.compile(r"Task-\d+|None")
"""Names that nobody gave. Python 3.13.0 names tasks that a factory makes "None" (`BaseEventLoop.create_task`)."""


class CreateTask:
    """Takes the place of a loop's `create_task` while that loop is recorded: it gives tasks coroutines that the core watches.

    The loop's task factory stays what it is: anyio starts tasks in another way where it is asyncio's eager one, and a program
    may set another at any time.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.watching = True
        self.replaced: Callable[..., asyncio.Future[Any]] | None = _attributes(loop).get("create_task")
        """What somebody else had put there before; `None` for the method of the loop's class."""
        self._loop = weakref.ref(loop)  # the loop refers to this
        self.ident, self.track = get_ident(), _core.thread_track()
        """The thread in which it is watched, which runs it."""

    def __call__(self, coroutine: Coroutine[Any, Any, Any], /, **options: Any) -> asyncio.Future[Any]:
        watched: Any = coroutine
        if self.watching and (type(coroutine) is CoroutineType or asyncio.iscoroutine(coroutine)):
            watched = _core.Coroutine(coroutine)
        if self.replaced is not None:
            return self.replaced(watched, **options)
        loop: Any = self._loop()
        task: asyncio.Future[Any] = loop.__class__.create_task(loop, watched, **options)
        return task


def _attributes(loop: asyncio.AbstractEventLoop) -> dict[str, Any]:
    return getattr(loop, "__dict__", {})


_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, CreateTask] = weakref.WeakKeyDictionary()


def watch() -> None:
    """Watches the tasks of the loop that runs in this thread, if one does: those that it has and those to come.

    The end of a step that is under way is not seen: that task counts as suspended from the loop's next turn on.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return
    watch_loop(loop)


def watch_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Likewise of a loop that runs in this thread, or is about to."""
    if loop in _loops:
        return
    _loops[loop] = create_task = CreateTask(loop)
    with contextlib.suppress(AttributeError):  # where it cannot be set, each task is watched from its first span on
        setattr(loop, "create_task", create_task)  # noqa: B010 - its type cannot be written
    runs = loop.is_running()
    for task in asyncio.all_tasks(loop):
        _watch_task(task, loop, runs)


def running_loop() -> tuple[int, int] | None:
    """Identity and track of a thread whose loop runs, of those that are watched; any thread."""
    for loop, create_task in list(_loops.items()):
        if create_task.track and loop.is_running():
            return create_task.ident, create_task.track
    return None


def release() -> None:
    """Gives every loop back the `create_task` that it had, unless it was given another since. Any thread."""
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
    """The coroutine that the core watches of a task; one that was made without gets it now.

    Args:
        task: of the loop.
        loop: of this thread.
        runs: whether the loop is inside of a step of some task.
    """
    runs = runs and task is asyncio.current_task(loop)
    try:
        coroutine: Any = task.get_coro()
        if type(coroutine) is _core.Coroutine:
            return coroutine
        watched = _core.adopt(task, asyncio.Task, runs)
        if watched is None and _replace(task, coroutine):
            watched = _core.adopt(task, asyncio.Task, runs)
    except Exception as error:
        if from_signal_handler(error):
            raise
        watched = None  # a type of the program's own may lack anything; it is counted
    if watched is None:
        _count_unwatched(task)
    elif runs:
        loop.call_soon(watched._paused)  # pyright: ignore[reportPrivateUsage]
    return watched


def _replace(task: asyncio.Task[Any], coroutine: Any) -> bool:
    """Gives a task whose type is written in Python a coroutine that the core watches, where one attribute of it holds the
    coroutine; if it does not answer with it afterwards, all stays as it was."""
    attributes: dict[str, Any] = getattr(task, "__dict__", {})
    holding = [name for name, value in list(attributes.items()) if value is coroutine]
    if len(holding) != 1:
        return False
    attributes[holding[0]] = watched = _core.Coroutine(coroutine)
    answer: Any = task.get_coro()
    if answer is watched:
        return True
    attributes[holding[0]] = coroutine
    return False


def _count_unwatched(task: asyncio.Task[Any]) -> None:
    try:
        if task in _unwatched_tasks:
            return
        _unwatched_tasks.add(task)
    except TypeError:
        pass  # it cannot be referred to weakly: counted each time that it is asked for
    kind = f"{type(task).__module__}.{type(task).__qualname__}"
    kind = kind if kind in unwatched or len(unwatched) < MAX_KINDS else "others"
    unwatched[kind] = unwatched.get(kind, 0) + 1


def running() -> tuple[str, int, _core.Coroutine | None] | None:
    """Name, number and coroutine of the task that runs in this thread, if one does.

    A task that asyncio named is called by its function: a row is used again by later tasks of its name.
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

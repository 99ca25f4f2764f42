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
from stepscope.runtime.loop_threads.lasting_loop import is_lasting
from stepscope.runtime.threads.native_threads import get_ident
from stepscope.runtime.threads.user_code import from_signal_handler, replace

MAX_KINDS = 16
"""Types of tasks with counts of their own in `unwatched`."""

unwatched: dict[str, int] = {}
"""Tasks that recorded and are not watched, by type: their suspended time counts as their own."""

_unwatched_tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()

_AUTOMATIC = re.compile(r"Task-\d+|None")
"""Default names. Python 3.13.0 names tasks that a factory makes "None" (`BaseEventLoop.create_task`)."""

_OWN_TASKS = frozenset(
    {"shutdown_asyncgens", "shutdown_default_executor", "_accept_connection2", "_create_server_getaddrinfo"}
)
"""Methods of loops that `asyncio.run`, or the loop itself, makes tasks of, of which the program knows nothing."""


class CreateTask:
    """Replaces a loop's `create_task` while the loop is recorded, so that the core watches the coroutines of its tasks.

    It does not use the loop's task factory: anyio starts tasks in another way if that is asyncio's eager one, and the program
    may replace it at any time.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.watching = True
        self.replaced: Callable[..., asyncio.Future[Any]] | None = _replacement(loop)
        """A replacement of other code that was set before; `None` for the method of the loop's class."""
        self._loop = weakref.ref(loop)  # the loop refers to this
        self.ident, self.track = get_ident(), 0
        """The thread that runs the loop, and its track once a task of it has recorded something."""

    def __call__(self, coroutine: Coroutine[Any, Any, Any], /, **options: Any) -> asyncio.Future[Any]:
        watched: Any = coroutine
        if (
            self.watching
            and getattr(coroutine, "__name__", "") not in _OWN_TASKS
            and (type(coroutine) is CoroutineType or asyncio.iscoroutine(coroutine))
        ):
            watched = _core.Coroutine(coroutine)
        if self.replaced is not None:
            return self.replaced(watched, **options)
        loop: Any = self._loop()
        task: asyncio.Future[Any] = loop.__class__.create_task(loop, watched, **options)
        return task


def _replacement(loop: asyncio.AbstractEventLoop) -> Callable[..., asyncio.Future[Any]] | None:
    """The `create_task` that other code has set on the loop; `None` if it has that of its class.

    It leaves `__dict__` alone: in CPython up to 3.12, reading that of an object makes each later use of its attributes slower.
    """
    kind: Any = type(loop)
    method: Any = loop.create_task
    own: Any = getattr(kind, "create_task", None)
    bound = own.__get__(loop, kind) if hasattr(own, "__get__") else own
    return None if method == bound else method


_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, CreateTask] = weakref.WeakKeyDictionary()

_RUNNERS = (
    (asyncio.Runner, "run"),
    (asyncio.BaseEventLoop, "run_until_complete"),
    (asyncio.BaseEventLoop, "run_forever"),
)
"""The methods that run loops: `asyncio.run`, with any loop, and asyncio's loops that the program runs itself."""

_restore: list[Callable[[], None]] = []
"""Restores each of these methods."""


def watch() -> None:
    """Watches tasks that are made from now on, in the loop that runs in this thread and in loops that begin to run.

    Tasks that exist are not watched: CPython has no way to give them another coroutine. The caller's own task, in which
    `async with trace()` has to run, does not count as unwatched.
    """
    if not _restore:
        for owner, name in _RUNNERS:
            replace(_restore, name, _watching, owner)
    with contextlib.suppress(RuntimeError, TypeError):  # no loop runs; a task has no weak references
        loop = asyncio.get_running_loop()
        _watch_loop(loop)
        task = asyncio.current_task(loop)
        if task is not None:
            _unwatched_tasks.add(task)


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _watching(original: Any) -> Any:
    def run(runs: Any, *args: Any, **kwargs: Any) -> Any:
        if _restore and not _in_loop():  # else the original refuses
            loop = runs.get_loop() if isinstance(runs, asyncio.Runner) else runs
            if not is_lasting(loop):
                _watch_loop(loop)
        return original(runs, *args, **kwargs)

    return run


def _watch_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Watches the future tasks of a loop that runs in this thread, or is about to."""
    if loop in _loops:
        return
    _loops[loop] = create_task = CreateTask(loop)
    with contextlib.suppress(AttributeError):  # if it cannot be set, its tasks are not watched, which is counted
        setattr(loop, "create_task", create_task)  # noqa: B010 - its type cannot be written


def running_loop() -> tuple[int, int] | None:
    """Returns ident and track of a thread with a watched loop that runs. Any thread may call."""
    for loop, create_task in list(_loops.items()):
        if create_task.track and loop.is_running():
            return create_task.ident, create_task.track
    return None


def running_loops() -> list[asyncio.AbstractEventLoop]:
    """Returns the watched loops that run. Any thread may call."""
    return [loop for loop in list(_loops) if loop.is_running()]


def release() -> None:
    """Restores `create_task` of every loop, unless other code has replaced it since. Any thread may call."""
    while _restore:
        _restore.pop()()
    while _loops:
        loop, create_task = _loops.popitem()
        create_task.watching = False
        current: Any = loop.create_task
        if current is not create_task:
            continue
        if create_task.replaced is None:
            delattr(loop, "create_task")
        else:
            setattr(loop, "create_task", create_task.replaced)  # noqa: B010


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
    """Returns name, number and watched coroutine of the task that runs in this thread; `None` without one.

    A task with a default name gets the name of its function, because later tasks with the same name use its row again.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return None
    _watch_loop(loop)
    create_task = _loops.get(loop)  # `None`: the last profiler was closed meanwhile
    if create_task is not None and not create_task.track:
        create_task.ident, create_task.track = get_ident(), _core.thread_track()
    task = asyncio.current_task(loop)
    if task is None:
        return None
    name = task.get_name()
    try:
        coroutine: Any = task.get_coro()
    except Exception as error:
        if from_signal_handler(error):
            raise
        coroutine = None  # a task type of the program may lack any attribute
    if _AUTOMATIC.fullmatch(name):
        name = getattr(coroutine, "__qualname__", coroutine.__class__.__name__)
    if type(coroutine) is _core.Coroutine:
        return name, id(task), coroutine
    _count_unwatched(task)
    return name, id(task), None

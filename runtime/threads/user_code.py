"""Calls of the program's code on our threads: callbacks, triggers, and exporters and backends that the program brings.

Our threads block all asynchronous signals. Code of the program, and the programs that it starts, get the mask of the program's
main thread instead, for as long as the code runs.
"""

from __future__ import annotations

import asyncio
import signal
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import ContextVar
from functools import partial
from types import CodeType, FunctionType, MethodType, coroutine
from typing import Any, TypeVar, cast

import anyio

from stepscope.runtime import _core
from stepscope.runtime.threads.native_threads import on_main_thread

T = TypeVar("T")

run = _core.with_programs_mask
"""Calls a function of the program."""


def is_programs(part: object) -> bool:
    """Whether an object is of a class that is not ours."""
    return type(part).__module__.partition(".")[0] != __name__.partition(".")[0]


async def run_async(call: Callable[[], Awaitable[T]]) -> T:
    """Awaits what a function of the program returns. While that waits for something, the thread has its own mask."""

    async def started() -> T:
        return await call()

    return await _by_steps(started())


@coroutine
def _by_steps(steps: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    value: Any = None
    step: Callable[[Any], Any] = steps.send
    while True:
        try:
            waits_for = run(step, value)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        try:
            value = yield waits_for
            step = steps.send
        except GeneratorExit:
            run(steps.close)
            raise
        except BaseException as error:  # a cancellation, or what it waited for has raised
            value, step = error, steps.throw


GRACE = 0.2
"""Seconds that a part which was cancelled has left to end."""


def from_signal_handler(error: BaseException) -> bool:
    """Whether a handler of a signal has raised an exception that came out of a call of a part, so that it must go on.

    Python calls handlers on the main thread. Handlers are those that are set when this is called, and are written in Python:
    one of their functions is in the traceback. Of handlers written in C only Python's own for Ctrl-C counts: it raises
    `KeyboardInterrupt` without a message.
    """
    if not on_main_thread():
        return False
    if isinstance(error, KeyboardInterrupt) and not error.args:
        return True
    handlers = {_code(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    return any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__))


def _code(handler: object) -> CodeType | None:
    """The code of a function, method, partial object or object that is called."""
    while isinstance(handler, partial):
        handler = cast(partial[object], handler).func
    if callable(handler) and not isinstance(handler, FunctionType | MethodType):
        handler = getattr(type(handler), "__call__", None)  # noqa: B004 - it is looked at, not called
    code = getattr(handler, "__code__", None)
    return code if isinstance(code, CodeType) else None


def cancels(error: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Whether an exception that came out of an awaited coroutine of a part was sent to the task that awaits it.

    So it is if the task is cancelled: a part that has cancelled a task of its own, and waits for that, raises the same. A
    coroutine that is given up without having ended is closed by others than its task.

    Args:
        error: what came out.
        task: `asyncio.current_task()` before the call.
    """
    if isinstance(error, asyncio.CancelledError):
        return anyio.get_current_task().has_pending_cancellation()
    return isinstance(error, GeneratorExit) and _current() is not task


async def contain(call: Callable[[], Awaitable[None]], keep: Callable[[BaseException], object]) -> bool:
    """Awaits a coroutine function of a part in a task of its own, out of which nothing comes but what ends the caller.

    A part that cancels its task cancels nobody else, and what is raised by a task that it waits for cannot pass it by, as
    `GeneratorExit` would: that closes whatever the part was awaited by.

    Args:
        keep: is given what it raises, also after the caller was cancelled.

    Returns:
        Whether it came to its end.

    Raises:
        asyncio.CancelledError: if the caller is cancelled; the part has then been cancelled, and had `GRACE` seconds to end.
    """
    failed = cancelled = False

    async def own() -> None:
        nonlocal failed
        try:
            await call()
        except BaseException as error:
            if not (cancelled and isinstance(error, asyncio.CancelledError)):
                failed = True
                keep(error)

    task = asyncio.create_task(own())
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        cancelled = True
        task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait({task}, timeout=GRACE)
        raise
    return not failed


def _current() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs here
        return None


_pipeline: ContextVar[object | None] = ContextVar("stepscope delivering", default=None)


def deliver_for(pipeline: object) -> None:
    """From here on, and in what is started from here, the caller is part of this pipeline."""
    _pipeline.set(pipeline)


def delivering() -> object | None:
    """The pipeline whose exporter or callback the caller is, on whatever thread; `None` for everybody else."""
    return _pipeline.get()

"""Calls of the program's code on the runtime's threads: callbacks, triggers, and the program's exporters and backends.

The runtime's threads block all asynchronous signals. While code of the program runs on them, they have the signal mask of the
main thread, which programs that this code starts inherit.
"""

from __future__ import annotations

import asyncio
import functools
import signal
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import ContextVar
from types import CodeType, FunctionType, MethodType, coroutine
from typing import Any, TypeVar, cast

import anyio

from stepscope.runtime import _core
from stepscope.runtime.threads.native_threads import on_main_thread

T = TypeVar("T")

run = _core.with_programs_mask
"""Calls a function with the signal mask of the main thread."""


def is_programs(part: object) -> bool:
    """Whether an object's class is defined by the program, not by stepscope."""
    return type(part).__module__.partition(".")[0] != __name__.partition(".")[0]


def replace(undo: list[Callable[[], None]], name: str, make: Callable[[Any], Any], *owners: Any) -> None:
    """Replaces the first owner's function of this name by `make(function)`, in all owners that have it. Adds to `undo` a function
    that restores it, unless other code has replaced it since."""
    original = getattr(owners[0], name)
    wrapper = functools.wraps(original)(make(original))

    def restore() -> None:
        for owner in owners:
            if getattr(owner, name, None) is wrapper:
                setattr(owner, name, original)

    try:
        undo.append(restore)
        for owner in owners:
            if getattr(owner, name, None) is original:
                setattr(owner, name, wrapper)
    except BaseException:  # also of a signal handler
        restore()
        if restore in undo:
            undo.remove(restore)
        raise


async def run_async(call: Callable[[], Awaitable[T]]) -> T:
    """Calls an async function of the program and awaits it. The mask is changed only while its code runs, not while it waits."""

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
        except BaseException as error:  # a cancellation, or an exception of the awaited object
            value, step = error, steps.throw


CANCEL_TIMEOUT_S = 0.2
"""Seconds in which a cancelled part must end."""


def from_signal_handler(error: BaseException) -> bool:
    """Whether a signal handler raised an exception that a call of a part has raised. If so, the caller must raise it again.

    It searches the traceback for the handlers that are set now and written in Python, which run on the main thread. Of
    handlers written in C it knows only Python's own for Ctrl-C, which raises `KeyboardInterrupt` without a message.
    """
    if not on_main_thread():
        return False
    if isinstance(error, KeyboardInterrupt) and not error.args:
        return True
    handlers = {_code(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    return any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__))


def _code(handler: object) -> CodeType | None:
    """The code of a function, a method, a partial object or an object with `__call__`."""
    while isinstance(handler, functools.partial):
        handler = cast(functools.partial[object], handler).func
    if callable(handler) and not isinstance(handler, FunctionType | MethodType):
        handler = getattr(type(handler), "__call__", None)  # noqa: B004 - for its code only
    code = getattr(handler, "__code__", None)
    return code if isinstance(code, CodeType) else None


def cancels(error: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Whether an exception that an awaited coroutine of a part raised is a cancellation of `task`, which awaits it.

    `CancelledError` alone does not show that: a part that awaits a task which it cancelled itself raises it, too.
    `GeneratorExit` does if another task closes the coroutine.
    """
    if isinstance(error, asyncio.CancelledError):
        return anyio.get_current_task().has_pending_cancellation()
    return isinstance(error, GeneratorExit) and _current() is not task


async def contain(call: Callable[[], Awaitable[None]], record: Callable[[BaseException], object]) -> bool:
    """Awaits an async function of a part in a separate task. It raises nothing but the cancellation of the caller.

    So a part that cancels its own task does not cancel the caller, and a `GeneratorExit` of a task that the part awaits does
    not close the caller's coroutine. `record` gets the exception of the part, also after the caller was cancelled. Returns
    whether the part returned without an exception.

    Raises:
        asyncio.CancelledError: if the caller is cancelled. Before, the part was cancelled and had `CANCEL_TIMEOUT_S` seconds to end.
    """
    failed = cancelled = False

    async def own() -> None:
        nonlocal failed
        try:
            await call()
        except BaseException as error:
            if not (cancelled and isinstance(error, asyncio.CancelledError)):
                failed = True
                record(error)

    task = asyncio.create_task(own())
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        cancelled = True
        task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait({task}, timeout=CANCEL_TIMEOUT_S)
        raise
    return not failed


def _current() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs here
        return None


_pipeline: ContextVar[object | None] = ContextVar("stepscope delivering", default=None)


def deliver_for(pipeline: object) -> None:
    """Marks the caller, and tasks and threads that it starts, as exporter or callback of a pipeline. They must not wait for it."""
    _pipeline.set(pipeline)


def delivering() -> object | None:
    """Returns the pipeline whose exporter or callback calls this; `None` for other callers."""
    return _pipeline.get()

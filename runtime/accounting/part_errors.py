"""Exceptions of parts: whether the part raised one, or it was sent to end the caller.

A part is what others wrote, or what may fail: a backend, a schedule, an exporter. What it raises is its own, of whatever
kind: `SystemExit` costs it no less and nobody else more than `OSError` does.
"""

from __future__ import annotations

import asyncio
import signal
import traceback
from collections.abc import Awaitable, Callable
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any, cast

import anyio

from stepscope.runtime.threads.native_threads import on_main_thread

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

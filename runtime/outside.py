"""Whether an exception is what a called part raised, or was sent from outside to end the caller.

A part is what others wrote, or what may fail: a backend, a schedule, an exporter. What it raises is its own, of whatever
kind: `SystemExit` costs it no less and nobody else more than `OSError` does.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import signal
import threading
import traceback
from collections.abc import Awaitable, Callable
from functools import partial
from types import FrameType, FunctionType, MethodType
from typing import Any, cast

import anyio

GRACE = 0.2
"""Seconds that a part which was cancelled has left to end."""


def interrupts(error: BaseException) -> bool:
    """Whether an exception that came out of a call of a part was raised by the handler of a signal, and is to go on.

    Python calls handlers on the main thread, with the signal's number and the frame that they interrupt: that of the
    traceback before theirs. One that is not written in Python leaves no frame: what may be of such a one goes on, unless it
    is an `Exception`. The one for Ctrl-C that Python comes with has to wait until calls of ours are over
    (`signals.uninterrupted`).
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    before: FrameType | None = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if before is not None and _handles(frame, before):
            return True
        before = frame
    return not isinstance(error, Exception | asyncio.CancelledError | GeneratorExit) and _leaves_no_frame()


def _handles(frame: FrameType, interrupted: FrameType) -> bool:
    """Whether a function was called as a handler: a part may well look at its caller's frame."""
    code, given = frame.f_code, frame.f_locals
    positional = [given.get(name) for name in code.co_varnames[: code.co_argcount]]
    if code.co_flags & inspect.CO_VARARGS:
        rest = given.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount])
        positional += cast(tuple[object, ...], rest) if type(rest) is tuple else ()
    return any(frame is interrupted and isinstance(number, int) for number, frame in itertools.pairwise(positional))


def _leaves_no_frame() -> bool:
    """Whether the program handles a signal by what is not written in Python."""
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    if handlers.get(signal.SIGINT) is signal.default_int_handler:
        del handlers[signal.SIGINT]
    return any(callable(handler) and not _is_python(handler) for handler in handlers.values())


def _is_python(handler: object) -> bool:
    while isinstance(handler, partial):
        handler = cast(partial[object], handler).func
    return isinstance(handler, FunctionType | MethodType) or isinstance(type(handler).__call__, FunctionType)


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

"""Executors: what is given to them hangs on the span that is open there."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from stepscope.runtime import _core
from stepscope.runtime.settings.arguments import got

P = ParamSpec("P")
T = TypeVar("T")

_submit: Any = ThreadPoolExecutor.submit


@functools.wraps(_submit)
def _submit_with_span(self: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
    span = _core.current_span()
    if span:
        return _original(self, _core.call_under, span, fn, *args, **kwargs)
    return _original(self, fn, *args, **kwargs)


_original: Callable[..., Future[Any]] = _submit
"""What makes the future: the method that was there before ours."""


def watch() -> None:
    """Makes `ThreadPoolExecutor.submit`, and with it `loop.run_in_executor`, pass on the span that is open."""
    global _original
    if ThreadPoolExecutor.submit is not _submit_with_span:
        _original = ThreadPoolExecutor.submit
        setattr(ThreadPoolExecutor, "submit", _submit_with_span)  # noqa: B010 - its type cannot be written


def release() -> None:
    """Undoes that, unless somebody else has replaced the method since: then it passes on nothing, as nothing records."""
    if ThreadPoolExecutor.submit is _submit_with_span:
        setattr(ThreadPoolExecutor, "submit", _original)  # noqa: B010


def propagate(function: Callable[P, T], /) -> Callable[P, T]:
    """Ties a function to the span that is open now: spans of its calls hang on that, in whatever thread they happen.

    Tasks, `asyncio.to_thread`, thread pools and what runs in a copied context need no help. Threads do, for a thread
    may be started by one span and work for many: `threading.Thread(target=propagate(work))`.

    Args:
        function: a plain function; of a coroutine function, only the call that makes the coroutine is tied.

    Returns:
        A function of the same parameters; `function` itself if no span is open or nothing is recorded.

    Raises:
        TypeError: if it is no function.
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

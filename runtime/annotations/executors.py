"""Thread pools and functions that run under the span that was open when they were submitted."""

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
"""The method that was set before."""


def watch() -> None:
    """Makes `ThreadPoolExecutor.submit`, and so `loop.run_in_executor`, propagate the open span."""
    global _original
    if ThreadPoolExecutor.submit is not _submit_with_span:
        _original = ThreadPoolExecutor.submit
        setattr(ThreadPoolExecutor, "submit", _submit_with_span)  # noqa: B010 - its type cannot be written


def release() -> None:
    """Restores the method, unless other code has replaced it since."""
    if ThreadPoolExecutor.submit is _submit_with_span:
        setattr(ThreadPoolExecutor, "submit", _original)  # noqa: B010


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

"""Spans as decorators."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from typing import Any, TypeVar

from stepscope.runtime import _core

F = TypeVar("F", bound=Callable[..., Any])


def decorate(span: _core.span, function: F) -> F:
    """Wraps a function so that each call is a span.

    A coroutine function's span lasts from its first step to its end, waiting included. A generator's work is
    recorded as one span per resumption: the time in between belongs to who iterates.

    Raises:
        TypeError: if it is not callable.
    """
    wrapper: Any
    if isinstance(function, classmethod | staticmethod):
        return type(function)(decorate(span, function.__func__))
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            with span.copy():
                return await function(*args, **kwargs)

        wrapper = coroutine
    elif inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        def async_generator(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            return _resumed_async(span, function(*args, **kwargs))

        wrapper = async_generator
    elif inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def generator(*args: Any, **kwargs: Any) -> Iterator[Any]:
            return _resumed(span, function(*args, **kwargs))

        wrapper = generator
    elif callable(function):

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with span.copy():
                return function(*args, **kwargs)

        wrapper = call
    else:
        raise TypeError(f"span({span.name!r}) can decorate a function, got {function!r}")
    return wrapper  # type: ignore[no-any-return]


def _resumed(span: _core.span, inner: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Runs a generator, each resumption in a span; send, throw, close and the return value pass through."""
    resume: Callable[[], Any] = functools.partial(next, inner)
    try:
        while True:
            with span.copy():
                try:
                    item = resume()
                except StopIteration as stop:
                    return stop.value  # inside the span: ending is no error
            try:
                sent = yield item
            except GeneratorExit:
                raise
            except BaseException as error:
                resume = functools.partial(inner.throw, error)
            else:
                resume = functools.partial(inner.send, sent)
    finally:
        inner.close()


async def _resumed_async(span: _core.span, inner: AsyncGenerator[Any, Any]) -> AsyncGenerator[Any, Any]:
    """The same for an async generator."""
    resume: Callable[[], Any] = inner.__anext__
    try:
        while True:
            with span.copy():
                try:
                    item = await resume()
                except StopAsyncIteration:
                    return  # inside the span: ending is no error
            try:
                sent = yield item
            except GeneratorExit:
                raise
            except BaseException as error:
                resume = functools.partial(inner.athrow, error)
            else:
                resume = functools.partial(inner.asend, sent)
    finally:
        await inner.aclose()


_core.set_decorator(decorate)

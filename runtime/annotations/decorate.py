"""Spans as decorators."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from stepscope.runtime import _core
from stepscope.runtime.settings.arguments import got

copy = _core.copy_span
F = TypeVar("F", bound=Callable[..., Any])


def decorate(span: _core.span, function: F, begin: Callable[[], AbstractContextManager[object]] | None = None) -> F:
    """Wraps a function so that each call is a span.

    Args:
        span: copied for each call.
        function: also a coroutine function, a generator function, or a method of a class.
        begin: what each call enters in place of a copy.

    The span of an async function lasts from its first step to its end, including waiting. A generator gets one span per
    resumption: the time in between belongs to its consumer.

    Raises:
        TypeError: if it is not callable.
    """
    begin = begin or functools.partial(copy, span)
    wrapper: Any
    method: Any = function
    if isinstance(method, classmethod | staticmethod):
        rewrap: Any = type(method)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        return rewrap(decorate(span, method.__func__, begin))  # type: ignore[no-any-return]  # pyright: ignore
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            with begin():
                return await function(*args, **kwargs)

        wrapper = coroutine
    elif inspect.isasyncgenfunction(function):
        wrapper = _async_generator(begin, function)
    elif inspect.isgeneratorfunction(function):
        wrapper = _generator(begin, function)
    elif callable(function):

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with begin():
                return function(*args, **kwargs)

        wrapper = call
    else:
        raise TypeError(f"span({span.name!r}) can decorate a function, {got(function)}")
    return wrapper  # type: ignore[no-any-return]


def _generator(
    begin: Callable[[], AbstractContextManager[object]], function: Callable[..., Generator[Any, Any, Any]]
) -> Callable[..., Any]:
    """Makes each resumption of a generator a span. Supports send, throw, close and the return value."""

    @functools.wraps(function)
    def generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        inner = function(*args, **kwargs)
        resume: Callable[..., Any] = inner.__next__
        arguments: tuple[Any, ...] = ()
        while True:
            with begin():
                try:
                    item = resume(*arguments)
                except StopIteration as stop:
                    return stop.value  # inside the span: ending is no error
                finally:
                    arguments = ()  # releases the sent value or the exception
            try:
                arguments = ((yield item),)
            except GeneratorExit:
                with begin():
                    inner.close()
                raise
            except BaseException as error:
                resume, arguments = inner.throw, (error,)
            else:
                resume = inner.send

    return generator


def _async_generator(
    begin: Callable[[], AbstractContextManager[object]], function: Callable[..., AsyncGenerator[Any, Any]]
) -> Callable[..., Any]:
    """The same for an async generator function."""

    @functools.wraps(function)
    async def generator(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        inner = function(*args, **kwargs)
        resume: Callable[..., Any] = inner.__anext__
        arguments: tuple[Any, ...] = ()
        while True:
            with begin():
                try:
                    item = await resume(*arguments)
                except StopAsyncIteration:
                    return  # inside the span: ending is no error
                finally:
                    arguments = ()
            try:
                arguments = ((yield item),)
            except GeneratorExit:
                with begin():
                    await inner.aclose()
                raise
            except BaseException as error:
                resume, arguments = inner.athrow, (error,)
            else:
                resume = inner.asend

    return generator


_core.set_decorator(decorate)

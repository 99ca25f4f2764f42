"""Tasks, frames and events, which have a begin and an end."""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Self, TypeVar

from stepscope.compat.mxnet.objects.forwarding import forwarding
from stepscope.compat.mxnet.objects.names import Named, domain_name, legal
from stepscope.runtime import _core
from stepscope.runtime.annotations.decorate import decorate
from stepscope.runtime.events import clock
from stepscope.runtime.threads import locks

F = TypeVar("F", bound=Callable[..., Any])


class Start(NamedTuple):
    """One start of an object, which one `stop()` ends."""

    caller: tuple[int, int]
    """The thread and the task that started it."""
    span: _core.span
    forwarded: object
    """The answer of the tool to which it was forwarded."""
    is_forwarded: bool


class Duration:
    """The base of tasks, frames and events. Use `start()` and `stop()`, `with`, `async with`, or as a decorator.

    One object may be started again while it is started, and by any number of threads and tasks at a time: each start is a
    span of its own with a number of its own, and `stop()` ends the latest of the thread or task that calls it. A stop
    without a start does nothing. Durations that overlap on a thread without nesting are drawn as async pairs. One that is started in
    a pause begins at its end. One that is never stopped is in the trace as far as recording went; an object that is freed
    while it is started ends then.
    """

    def __init__(self, name: str, category: str, arguments: dict[str, Any]) -> None:
        self.name = name
        self._category = category
        self._arguments = arguments
        self._span = _core.span(legal(type(self).__name__.lower(), name), category=category, **arguments)
        self._entered = 0
        """Number of entries into `_span` without an exit."""
        self._starts: list[Start] = []
        """Starts that were not stopped and that are forwarded or have a span of their own, of all threads and tasks, the
        latest last."""

    def start(self) -> None:
        """Begins a span."""
        if forwarding.to is None:
            self._entered += 1
            self._span.__enter__()
        else:
            self._note(self._span)

    def _note(self, span: _core.span) -> None:
        """Notes a start that is forwarded, or has a span of its own."""
        is_forwarded = forwarding.to is not None
        one = Start(_caller(), span, forwarding.start(self.name, self._category), is_forwarded)
        with _lock:
            self._starts.append(one)
        span.__enter__()

    def stop(self) -> None:
        """Ends the latest start of this thread or task."""
        self.__exit__(None, None, None)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        one = self._latest() if self._starts else None
        if one is None:
            self._entered = max(self._entered - 1, 0)
            self._span.__exit__(kind, error, trace)
            return
        if one.is_forwarded:
            forwarding.stop(one.forwarded)
        one.span.__exit__(kind, error, trace)

    def _latest(self) -> Start | None:
        """The latest noted start of the caller; one of others if nobody has another. `None` if `_span` has it."""
        caller = _caller()
        with _lock:
            own = (at for at in range(len(self._starts) - 1, -1, -1) if self._starts[at].caller == caller)
            at = next(own, None)
            if at is None and (self._entered or not self._starts):
                return None
            return self._starts.pop(-1 if at is None else at)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        self.__exit__(kind, error, trace)

    def __call__(self, function: F) -> F:
        """Decorates a function, coroutine function or generator function: each call is one start and stop."""
        return decorate(self._span, function)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def __del__(self) -> None:
        for one in reversed(getattr(self, "_starts", ())):  # there are none if the constructor raised
            one.span.__exit__(None, None, None)
        for _ in range(getattr(self, "_entered", 0)):
            self._span.__exit__(None, None, None)


class Task(Duration):
    """A unit of work of a thread or task; all passes of a name are added up.

    Args:
        domain: groups it.
        name: any text.
        arguments: numbers and texts that the trace shows with each pass.

    Raises:
        TypeError: if the domain is none, or the name no str.
    """

    def __init__(self, domain: Named, name: str, /, **arguments: Any) -> None:
        self.domain = domain
        super().__init__(name, domain_name(domain), arguments)


class Event(Duration):
    """A stretch of time without a domain.

    Args:
        name: any text.
        arguments: as those of a task.

    Raises:
        TypeError: if the name is no str.
    """

    def __init__(self, name: str, /, **arguments: Any) -> None:
        super().__init__(name, "event", arguments)


FRAME = "frame"
"""Key of the argument that numbers the passes of a frame."""
FRAMES = ",frame"
"""Ends the category of frames, after the name of their domain."""


class Frame(Duration):
    """A pass of something that recurs, such as a rendered picture: each has its number, from 0, and their rate is a counter.

    `passes(frame)` of this module lists them. Args and errors are those of a task.
    """

    def __init__(self, domain: Named, name: str, /, **arguments: Any) -> None:
        self.domain = domain
        self._numbers = itertools.count()
        self._last_start = 0
        super().__init__(name, domain_name(domain) + FRAMES, arguments)
        self._rate = legal("counter", f"{name} per second")

    def start(self) -> None:
        """Begins a pass."""
        number = {FRAME: next(self._numbers)}
        last, self._last_start = self._last_start, clock.now()
        self._note(_core.span(self._span.name, category=self._category, **self._arguments, **number))
        if last and self._last_start > last:
            _core.counter(self._rate, 1e9 / (self._last_start - last), category=self._category)

    def __call__(self, function: F) -> F:
        """Decorates a function, coroutine function or generator function: each call or resumption is a pass."""
        return decorate(self._span, function, lambda: self)


_lock = locks.reentrant()
"""Guards the starts of all objects."""


def _caller() -> tuple[int, int]:
    """Identifies the thread, and the task of the thread."""
    try:
        task: object = asyncio.current_task()
    except RuntimeError:  # no loop of asyncio runs in this thread
        task = _trio_task() if "trio" in sys.modules else None
    return threading.get_ident(), 0 if task is None else id(task)


def _trio_task() -> object:
    try:
        return sys.modules["trio"].lowlevel.current_task()
    except RuntimeError:
        return None

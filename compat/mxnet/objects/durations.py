"""Tasks, frames and events: what has a begin and an end."""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
from collections.abc import Callable
from typing import Any, Self, TypeVar

from stepscope.compat.mxnet.objects.forwarding import forwarding
from stepscope.compat.mxnet.objects.names import Named, domain_name, legal
from stepscope.compat.mxnet.objects.pausing import Start, pausing
from stepscope.runtime import _core
from stepscope.runtime.annotations.decorate import decorate
from stepscope.runtime.events import clock
from stepscope.runtime.threads import locks

F = TypeVar("F", bound=Callable[..., Any])


class Duration:
    """What tasks, frames and events share. Use `start()` and `stop()`, `with`, `async with`, or as a decorator.

    One object may be started again while it is started, and by any number of threads and tasks at a time: each start is a
    span of its own with a number of its own, and `stop()` ends the latest of the thread or task that calls it. A stop
    without a start does nothing. What overlaps on a thread without nesting is drawn as an async pair. What is started in
    a pause begins at its end. What is never stopped is in the trace as far as recording went; an object that is freed
    while it is started ends then.
    """

    _each_has_a_span = False
    """True if the spans of two starts differ."""

    def __init__(self, name: str, category: str, arguments: dict[str, Any]) -> None:
        self.name = name
        self._category = category
        self._arguments = arguments
        self._span = _core.span(legal(type(self).__name__.lower(), name), category=category, **arguments)
        self._started = 0
        """Starts whose span is `_span`, which tells threads and tasks apart itself."""
        self._starts: list[Start] = []
        """Other starts that were not stopped, of all threads and tasks, the latest last: those that began or waited in a pause,
        those that are forwarded, and those that came while there were any of these."""

    def start(self) -> None:
        """Begins."""
        if pausing.paused or self._starts or self._each_has_a_span or forwarding.to is not None:
            self._start_noted()
        else:
            self._started += 1
            self._span.__enter__()

    def _start_noted(self) -> None:
        one = Start(_caller())
        if forwarding.to is not None:
            one.forwarded, one.is_forwarded = forwarding.start(self.name, self._category), True
        with _lock:
            self._starts.append(one)
        if not (pausing.paused and pausing.wait(self, one)):
            self.begin(one)

    def begin(self, start: Start) -> None:
        """Begins the span of a start: at once, or at the end of the pause."""
        with _lock:
            if not start.stopped:
                start.span = self._new_span()
                start.span.__enter__()

    def _new_span(self) -> _core.span:
        """One for a start of its own: a stop must end that of its own thread."""
        return _core.span(self._span.name, category=self._category, **self._arguments)

    def stop(self) -> None:
        """Ends the latest start of this thread or task."""
        self.__exit__(None, None, None)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        one = self._noted() if self._starts else None
        if one is None:
            if self._started:
                self._started -= 1
            self._span.__exit__(kind, error, trace)
            return
        if one.is_forwarded:
            forwarding.stop(one.forwarded)
        if one.span is None:
            pausing.cancel(one)
        else:
            one.span.__exit__(kind, error, trace)

    def _noted(self) -> Start | None:
        """The latest noted start of the caller; one of others if nobody has another. `None` if `_span` has it."""
        caller = _caller()
        with _lock:
            own = (at for at in range(len(self._starts) - 1, -1, -1) if self._starts[at].caller == caller)
            at = next(own, None)
            if at is None and (self._started or not self._starts):
                return None
            one = self._starts.pop(-1 if at is None else at)
            one.stopped = True
            return one

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
            one.stopped = True
            if one.span is not None:
                one.span.__exit__(None, None, None)
        for _ in range(getattr(self, "_started", 0)):
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

    _each_has_a_span = True

    def __init__(self, domain: Named, name: str, /, **arguments: Any) -> None:
        self.domain = domain
        self._numbers = itertools.count()
        self._last_start = 0
        super().__init__(name, domain_name(domain) + FRAMES, arguments)
        self._rate = legal("counter", f"{name} per second")

    def begin(self, start: Start) -> None:
        """Begins a pass."""
        last, self._last_start = self._last_start, clock.now()
        super().begin(start)
        if last and self._last_start > last:
            _core.counter(self._rate, 1e9 / (self._last_start - last), category=self._category)

    def _new_span(self) -> _core.span:
        return _core.span(self._span.name, category=self._category, **self._arguments, **{FRAME: next(self._numbers)})

    def __call__(self, function: F) -> F:
        """Decorates a function, coroutine function or generator function: each call or resumption is a pass."""
        return decorate(self._span, function, lambda: self)


_lock = locks.reentrant()
"""Of the starts of all objects."""


def _caller() -> tuple[int, int]:
    """Tells threads apart, and the tasks of a thread."""
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

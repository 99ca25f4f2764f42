"""Exceptions of backends, exporters and triggers, and internal errors: the first are retained, all are counted."""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections.abc import Callable, Iterator
from functools import wraps
from types import TracebackType
from typing import Concatenate, Generic, NamedTuple, ParamSpec, Protocol, TypeVar, cast

from stepscope.runtime.threads import locks
from stepscope.runtime.threads.user_code import from_signal_handler

log = logging.getLogger("stepscope")

MAX_RETAINED = 16
"""Exceptions that a log retains."""
MAX_LINKED = 64
"""Exceptions that are followed from one: its causes, contexts and members."""
MAX_TEXT = 4096
"""Characters of an exception's text."""

E = TypeVar("E", bound=BaseException)


class RetainedError(NamedTuple, Generic[E]):
    """An exception and its text. The text is made once, as `__str__` may be the program's code and slow."""

    error: E
    text: str


class ErrorLog(Generic[E]):
    """Retains the first exceptions and counts all. Any thread may call.

    Memory is bounded even if the same object is raised again and again, as asyncio's `StreamReader` does after its connection
    was lost. Python extends the traceback of such an object each time, and so retains more frames. Therefore a retained
    exception gets its first traceback back, and the traceback of any other is removed. The same holds for its causes and
    members.
    """

    def __init__(self, limit: int = MAX_RETAINED, *, contexts: bool = False) -> None:
        """
        Args:
            limit: number of exceptions to retain.
            contexts: whether to treat `__context__` like a cause. Not for exceptions on threads of the program: there the
                context may be an exception of the program, whose traceback must stay.
        """
        self.retained: list[RetainedError[E]] = []
        """The first exceptions, the oldest first, each object once."""
        self.count = 0
        """Number of all exceptions."""
        self.first = ""
        """Method and text of the first; empty if there was none."""
        self._limit, self._contexts = limit, contexts
        self._lock = locks.reentrant()
        self._tracebacks: dict[int, tuple[BaseException, TracebackType | None]] = {}
        """Retained exceptions and those linked to them, by id, with the first traceback of each."""

    @property
    def errors(self) -> list[E]:
        """The retained exceptions, the oldest first."""
        return [retained.error for retained in self.retained]

    def retains(self, error: BaseException) -> bool:
        """Whether this very object is retained."""
        return any(retained.error is error for retained in list(self.retained))

    def record(self, where: str, error: E, by: str = "", text: str = "") -> bool:
        """Counts an exception of the method `where`, and retains it if it is among the first, with a note on who raised it. Returns whether it is
        the first.

        Its text is made only if it is retained and not known already: `__str__` may be the program's code.
        """
        linked = list(_linked(error, contexts=self._contexts))
        new = not self.retains(error) and len(self.retained) < self._limit
        if new:  # without the lock: `__str__` and `add_note` may be the program's code
            text = text or error_text(error)
            if by:
                with contextlib.suppress(Exception):  # a class may accept no notes
                    error.add_note(f"raised by {by} in {where}()")
        with self._lock:
            if new and not self.retains(error) and len(self.retained) < self._limit:
                for one in linked:
                    self._tracebacks.setdefault(id(one), (one, one.__traceback__))
                self.retained.append(RetainedError(error, text))
                self.first = self.first or f"{where}(): {text}"
            self.count += 1
            is_first = self.count == 1
        for one in linked:
            _, first = self._tracebacks.get(id(one), (one, None))
            BaseException.with_traceback(one, first)  # not by assignment, which a class may forbid
        return is_first

    def record_and_log(self, where: str, error: E, by: str, text: str = "") -> None:
        """Like `record`, and writes the first exception to the log."""
        if self.record(where, error, by, text):
            log.error("%s failed in %s", by, self.first)


def _linked(error: BaseException, *, contexts: bool) -> Iterator[BaseException]:
    """Yields an exception, its causes and members, and its contexts if `contexts` is set: each once, the nearest first."""
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting and len(seen) < MAX_LINKED:
        one = waiting.pop(0)
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += (one.__cause__, one.__context__ if contexts else None)
        if isinstance(one, BaseExceptionGroup):
            waiting += cast(BaseExceptionGroup[BaseException], one).exceptions[:MAX_LINKED]


def error_text(error: BaseException) -> str:
    """Returns type and message of an exception, at most `MAX_TEXT` characters; the type alone if `__str__` fails or is empty."""
    kind = type(error).__name__
    try:
        message = str(error)
    except BaseException as failure:
        if from_signal_handler(failure):
            raise
        message = ""
    text = f"{kind}: {message}" if message else kind
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}... ({len(text):,} characters)"


class InternalErrors:
    """Faults of stepscope itself, of one profiler or of the loop. An internal error ends neither the loop nor a profiler.

    The loop records them; any thread may read them.
    """

    def __init__(self, owner: str) -> None:
        """Args: name of the profiler or the loop, for messages."""
        self.raised: ErrorLog[Exception] = ErrorLog()
        self.owner = owner
        self._logged: set[type[Exception]] = set()

    def record(self, where: str, error: Exception) -> None:
        """Counts an error, retains it if it is among the first, and logs the first of each type. Clears its frames, as they may retain many
        events.
        """
        self.log(where, error)
        self.note(where, error)

    def log(self, where: str, error: Exception) -> None:
        """Writes an error to the log if it is the first of its type."""
        if type(error) not in self._logged:
            self._logged.add(type(error))
            log.error(
                "%s: a fault of stepscope in %s(): %s; it goes on, but what it had in hand may be missing: please report it",
                self.owner,
                where,
                error_text(error),
                exc_info=error,
            )

    def note(self, where: str, error: Exception) -> None:
        """Like `record`, without the log."""
        traceback.clear_frames(error.__traceback__)
        self.raised.record(where, error)


class _Faulty(Protocol):
    @property
    def faults(self) -> InternalErrors: ...


S = TypeVar("S", bound=_Faulty)
P = ParamSpec("P")
T = TypeVar("T")


def contained(default: T) -> Callable[[Callable[Concatenate[S, P], T]], Callable[Concatenate[S, P], T]]:
    """A decorator for methods of classes with an attribute `faults`, which records the exceptions of the method.

    Args:
        default: return value of the method after an exception.
    """

    def decorate(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
        @wraps(method)
        def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return method(self, *args, **kwargs)
            except Exception as error:
                self.faults.record(method.__name__.strip("_"), error)
                return default

        return call

    return decorate

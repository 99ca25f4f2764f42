"""What a part raises, over and over perhaps, for as long as a run lasts."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator
from functools import wraps
from types import TracebackType
from typing import Concatenate, Generic, NamedTuple, ParamSpec, Protocol, TypeVar, cast

from stepscope.runtime.threads import locks
from stepscope.runtime.threads.user_code import from_signal_handler

log = logging.getLogger("stepscope")

KEPT = 16
"""Exceptions that are kept; all are counted."""
LINKED = 64
"""Exceptions that are looked at of one with its causes, contexts and members."""

E = TypeVar("E", bound=BaseException)


class KeptError(NamedTuple, Generic[E]):
    """An exception, and its text, made when it was kept: its `__str__` is others' code, and may take long."""

    error: E
    text: str


class ErrorLog(Generic[E]):
    """Keeps the first exceptions that it is given, and counts all.

    What is kept does not grow, whatever is raised again. A part may raise the same object each time, as asyncio's
    `StreamReader` does once its connection is lost, by itself, or as the cause or a member of another: each time Python puts
    what it came through before its traceback, and all frames there with what they hold. So one that is kept has the
    traceback that it came with first, and one that is not kept has none. Any thread may call.
    """

    def __init__(self, most: int = KEPT, *, contexts: bool = False) -> None:
        """
        Args:
            most: how many are kept.
            contexts: whether what was being handled when an exception was raised is the part's as well. On a thread of the
                program's it may be the program's own, whose traceback is not ours to change.
        """
        self.kept: list[KeptError[E]] = []
        """The first, oldest first, each object once."""
        self.count = 0
        """How often something was raised."""
        self.first = ""
        """Where, and what; empty if there was nothing."""
        self._most, self._contexts = most, contexts
        self._lock = locks.reentrant()
        self._known: dict[int, tuple[BaseException, TracebackType | None]] = {}
        """Those kept and what is linked to them, by their ids, and the traceback that each came with first."""

    @property
    def errors(self) -> list[E]:
        """Those kept, the oldest first."""
        return [kept.error for kept in self.kept]

    def knows(self, error: BaseException) -> bool:
        """Whether this very object came before, and was kept."""
        return any(kept.error is error for kept in list(self.kept))

    def record(self, where: str, error: E, by: str = "", text: str = "") -> bool:
        """Counts an exception, and keeps it if it is among the first.

        Args:
            where: the method that raised it.
            error: what was raised.
            by: who raised it, which is written into a note of it; it gets none if this is empty.
            text: what it says, where that is known; else its `__str__` is called, if it is kept.

        Returns:
            Whether it is the first.
        """
        linked = list(_linked(error, contexts=self._contexts))
        new = not self.knows(error) and len(self.kept) < self._most
        if new:  # without the lock: this is others' code
            text = text or error_text(error)
            text = _noted(error, f"raised by {by} in {where}()", text) if by else text
        with self._lock:
            if new and not self.knows(error) and len(self.kept) < self._most:
                for one in linked:
                    self._known.setdefault(id(one), (one, one.__traceback__))
                self.kept.append(KeptError(error, text))
                self.first = self.first or f"{where}(): {text}"
            self.count += 1
            first_of_all = self.count == 1
        for one in linked:
            _, first = self._known.get(id(one), (one, None))
            BaseException.with_traceback(one, first)  # not by assignment, which a class may forbid
        return first_of_all

    def record_and_log(self, where: str, error: E, by: str, text: str = "") -> None:
        """The same, and the first is in the log."""
        if self.record(where, error, by, text):
            log.error("%s failed in %s", by, self.first)


def _noted(error: BaseException, note: str, text: str) -> str:
    """The text of an exception that was given a note; if it takes none, the text has it."""
    try:
        error.add_note(note)
    except Exception:
        return f"{text} ({note})"
    return text


def _linked(error: BaseException, *, contexts: bool) -> Iterator[BaseException]:
    """An exception, its causes, members, and contexts if these count, each once, the nearest first."""
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting and len(seen) < LINKED:
        one = waiting.pop(0)
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += (one.__cause__, one.__context__ if contexts else None)
        if isinstance(one, BaseExceptionGroup):
            waiting += cast(BaseExceptionGroup[BaseException], one).exceptions[:LINKED]


LONGEST = 4096
"""Characters of a text; what is longer is cut."""


def error_text(error: BaseException) -> str:
    """Its type and what it says, cut after `LONGEST` characters; the type alone if it says nothing, or cannot be made to."""
    kind = type(error).__name__
    try:
        text = f"{kind}: {said}" if (said := str(error)) else kind
    except BaseException as failure:  # of its own `__str__`: it is the error that counts
        if from_signal_handler(failure):
            raise
        text = kind
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text):,} characters)"


log = logging.getLogger("stepscope")


class InternalErrors:
    """Of one profiler, or of the loop; on the loop, but for reading."""

    def __init__(self, whose: str) -> None:
        """Args: whose they are, in a message."""
        self.raised: ErrorLog[Exception] = ErrorLog()
        self._whose = whose
        self._said: set[type[Exception]] = set()

    def record(self, where: str, error: Exception) -> None:
        """Counts and keeps what went wrong; the log has the first of each kind.

        Args:
            where: the function in which it did.
            error: what was raised; its frames are cleared, as they may hold many events, or all memory.
        """
        self.log(where, error)
        self.note(where, error)

    def log(self, where: str, error: Exception) -> None:
        """Has it in the log if it is the first of its kind."""
        if type(error) not in self._said:
            self._said.add(type(error))
            log.error(
                "%s: a fault of stepscope in %s(): %s; it goes on, but what it had in hand may be missing: please report it",
                self._whose,
                where,
                error_text(error),
                exc_info=error,
            )

    def note(self, where: str, error: Exception) -> None:
        """Counts and keeps it without a word: another has said it."""
        traceback.clear_frames(error.__traceback__)
        self.raised.record(where, error)


class _Faulty(Protocol):
    @property
    def faults(self) -> InternalErrors: ...


S = TypeVar("S", bound=_Faulty)
P = ParamSpec("P")
T = TypeVar("T")


def contained(default: T) -> Callable[[Callable[Concatenate[S, P], T]], Callable[Concatenate[S, P], T]]:
    """A decorator of methods of what has `faults`: what goes wrong in them is kept there.

    Args:
        default: what the method returns then.
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

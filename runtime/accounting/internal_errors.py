"""Faults of ours: what goes wrong in the runtime itself ends neither the loop nor what it does for other profilers."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from stepscope.runtime.accounting.error_log import ErrorLog
from stepscope.runtime.accounting.error_text import error_text

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

"""What one thread waits for and another gives, whatever interrupts the one that waits."""

from __future__ import annotations

import time
from typing import Generic, TypeVar, cast

from stepscope.runtime.threads.native_threads import Lock

T = TypeVar("T")

LOOK = 0.1
"""Seconds after which who waits looks again: a handler that raised just when the gate was opened has left it shut."""


class OneShot(Generic[T]):
    """Given once, by any thread; a second time changes nothing.

    A signal handler may interrupt who waits, and may raise, or wait for something that the giver has yet to do. Of a
    `concurrent.futures.Future` the waiting thread holds the lock for a moment then, which the giver needs: it would wait for the
    handler, or for ever. Here it needs nothing of those who wait.
    """

    def __init__(self) -> None:
        self.done = False
        """Whether it was given."""
        self._value: T | None = None
        self._error: BaseException | None = None
        self._gate = Lock()
        """Shut until then."""
        self._gate.acquire()

    @property
    def failed(self) -> bool:
        """Whether an error was given."""
        return self._error is not None

    def set_result(self, value: T) -> None:
        """Gives a value."""
        if not self.done:
            self._value = value
            self._end()

    def set_exception(self, error: BaseException) -> None:
        """Gives an error, which those who ask for the result are raised."""
        if not self.done:
            self._error = error
            self._end()

    def _end(self) -> None:
        self.done = True
        self._gate.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits, `timeout` seconds at most; returns whether it was given."""
        until = None if timeout is None else time.monotonic() + timeout
        while not self.done:
            left = LOOK if until is None else min(until - time.monotonic(), LOOK)
            if left <= 0:
                return False
            if self._gate.acquire(timeout=left):
                self._gate.release()  # for the others who wait
        return True

    def result(self, timeout: float | None = None) -> T:
        """Waits, and returns the value.

        Raises:
            TimeoutError: if nothing was given after `timeout` seconds.
            BaseException: the error, if one was given.
        """
        if not self.wait(timeout):
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return cast(T, self._value)

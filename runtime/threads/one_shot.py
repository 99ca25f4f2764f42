"""A result that one thread sets and others wait for."""

from __future__ import annotations

import contextlib
from typing import Generic, TypeVar, cast

from stepscope.runtime.threads.native_threads import Lock

T = TypeVar("T")


class OneShot(Generic[T]):
    """A result that any thread sets once. Setting it again has no effect.

    Unlike `concurrent.futures.Future`, each waiting thread has its own lock. A future has one lock, acquired in Python code:
    a signal handler that raises there can leave it locked, and the thread that sets the result, such as the runtime's loop,
    would hang.
    """

    def __init__(self) -> None:
        self.done = False
        """Whether it was set."""
        self._value: T | None = None
        self._error: BaseException | None = None
        self._waiting: list[Lock] = []

    @property
    def failed(self) -> bool:
        """Whether it was set to an error."""
        return self._error is not None

    def set_result(self, value: T) -> None:
        if not self.done:
            self._value = value
            self._end()

    def set_exception(self, error: BaseException) -> None:
        """Sets an error, which `result` raises."""
        if not self.done:
            self._error = error
            self._end()

    def _end(self) -> None:
        self.done = True  # first, for threads that begin to wait from here on
        for lock in list(self._waiting):
            with contextlib.suppress(RuntimeError):  # released already, by another thread that sets this
                lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits, `timeout` seconds at most; returns whether it was set."""
        if not self.done and (timeout is None or timeout > 0):
            lock = Lock()
            lock.acquire()
            self._waiting.append(lock)
            if not self.done:
                lock.acquire(timeout=-1 if timeout is None else timeout)
            self._waiting.remove(lock)
        return self.done

    def result(self, timeout: float | None = None) -> T:
        """Waits, and returns the value.

        Raises:
            TimeoutError: if nothing was set after `timeout` seconds.
            BaseException: the error, if one was set.
        """
        if not self.wait(timeout):
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return cast(T, self._value)

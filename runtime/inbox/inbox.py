"""The inbox: the one way from other threads to the loop.

The contract: a put that returns is processed; a put after close raises.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from stepscope.runtime.errors import ClosedError
from stepscope.runtime.threads import locks

T = TypeVar("T")


class InboxStatistics(msgspec.Struct, frozen=True):
    """`put` = `taken` + `waiting`; refused puts are counted apart."""

    put: int
    taken: int
    waiting: int
    waiting_bytes: int
    """Bytes that are in it, or that the consumer has taken and not handled."""
    peak_bytes: int
    refused: int
    """Puts refused because the inbox was full."""


class Inbox(Generic[T]):
    """A queue bounded by bytes, from any thread to one consumer. Nothing blocks.

    A signal handler may record, and so put, while its thread is inside a put.
    """

    def __init__(
        self, max_bytes: int, wake: Callable[[], object], wake_later: Callable[[], object] = lambda: None
    ) -> None:
        """
        Args:
            max_bytes: limit of what waits in it.
            wake: makes the consumer look at once.
            wake_later: makes it look soon, with whatever else comes until then.
        """
        self._max = max_bytes
        self._wake, self._wake_later = wake, wake_later
        self._items: deque[tuple[T, int]] = deque()
        self._lock = locks.reentrant()
        self._closed = False
        self.held = 0
        """Bytes that the consumer has taken and not handled: they count as waiting here. Set by the consumer."""
        self._put = self._taken = self._bytes = self._peak = self._refused = 0

    def put(self, item: T, nbytes: int = 0, *, later: bool = False) -> bool:
        """Adds an item of `nbytes`; items of 0 bytes (messages) always fit.

        Args:
            item: what is added.
            nbytes: how much of the limit it takes.
            later: it is enough if the consumer looks at it soon. Waking a thread costs the caller a system call, and, while
                it computes, a hand-over of the interpreter's lock.

        Returns:
            False if it did not fit. It was counted, and is not in the inbox.

        Raises:
            ClosedError: after `close()`.
        """
        with self._lock:
            if self._closed:
                raise ClosedError("the inbox is closed: the profiler that owned it has ended")
            if nbytes and self._bytes + self.held + nbytes > self._max:
                self._refused += 1
                return False
            # No call before the last: a signal handler that raises leaves an item that is counted, or none.
            self._put += 1
            self._bytes += nbytes
            if self._bytes + self.held > self._peak:
                self._peak = self._bytes + self.held
            self._items.append((item, nbytes))
        if later:
            self._wake_later()
        else:
            self._wake()
        return True

    @property
    def closed(self) -> bool:
        """Whether further puts are refused."""
        return self._closed

    @property
    def waiting(self) -> int:
        """Items that are in it; another thread may change that at any moment."""
        return len(self._items)

    @property
    def waiting_bytes(self) -> int:
        """Bytes that are in it, or held; another thread may change that at any moment."""
        return self._bytes + self.held

    def take(self) -> list[T]:
        """Everything that is there, in the order in which it was put."""
        with self._lock:
            items = [item for item, _ in self._items]
            self._items.clear()
            self._taken += len(items)
            self._bytes = 0
        return items

    def close(self) -> list[T]:
        """Refuses further puts; what was put before and not taken is returned, to be processed."""
        with self._lock:
            self._closed = True
            return self.take()

    def statistics(self) -> InboxStatistics:
        """Accounts so far."""
        with self._lock:
            return InboxStatistics(
                self._put, self._taken, len(self._items), self.waiting_bytes, self._peak, self._refused
            )

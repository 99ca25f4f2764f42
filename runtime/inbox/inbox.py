"""The inbox: the queue for messages of other threads to the loop; and deliveries that wait there for step marks.

A successful put is always processed. A put after closing raises.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from stepscope.runtime.errors import ClosedError
from stepscope.runtime.events import clock
from stepscope.runtime.inbox.messages import Delivery, Message
from stepscope.runtime.threads import locks

T = TypeVar("T")


class InboxStatistics(msgspec.Struct, frozen=True):
    """`put` = `received` + `waiting`. Refused puts are counted separately."""

    put: int
    received: int
    waiting: int
    waiting_bytes: int
    """Bytes in the inbox, or popped and not handled yet."""
    peak_bytes: int
    refused: int
    """Puts refused because the inbox was full."""


class Inbox(Generic[T]):
    """A queue with a limit in bytes, from any thread to one consumer. No method blocks.

    A signal handler may put while its thread is in `put`.
    """

    def __init__(
        self, max_bytes: int, wake: Callable[[], object], wake_later: Callable[[], object] = lambda: None
    ) -> None:
        """
        Args:
            max_bytes: limit of the waiting bytes.
            wake: wakes the consumer at once.
            wake_later: wakes the consumer soon, together with further messages.
        """
        self._max = max_bytes
        self.wake, self._wake_later = wake, wake_later
        self._items: deque[tuple[T, int]] = deque()
        self._lock = locks.reentrant()
        self._closed = False
        self.unhandled = 0
        """Bytes that were popped and not handled yet, which count as waiting. The consumer sets it."""
        self._put = self._received = self._bytes = self._peak = self._refused = 0

    def put(self, item: T, nbytes: int = 0, *, later: bool = False) -> bool:
        """Adds an item of `nbytes`, which count against the limit. Items of 0 bytes (messages) always fit.

        With `later`, it wakes the consumer later: waking a thread costs the caller a system call, and may cost a switch of the
        interpreter's lock.

        Returns:
            False if it did not fit. It was counted as refused.

        Raises:
            ClosedError: after `close()`.
        """
        with self._lock:
            if self._closed:
                raise ClosedError("the inbox is closed: the profiler that owned it has ended")
            if nbytes and self._bytes + self.unhandled + nbytes > self._max:
                self._refused += 1
                return False
            # No call before the last one: if a signal handler raises, the item is either counted and added, or neither.
            self._put += 1
            self._bytes += nbytes
            if self._bytes + self.unhandled > self._peak:
                self._peak = self._bytes + self.unhandled
            self._items.append((item, nbytes))
        if later:
            self._wake_later()
        else:
            self.wake()
        return True

    @property
    def closed(self) -> bool:
        """Whether further puts are refused."""
        return self._closed

    @property
    def waiting(self) -> int:
        """Number of waiting items. Another thread may change it at any moment."""
        return len(self._items)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of waiting items, and of popped ones that are not handled yet. Another thread may change it at any moment."""
        return self._bytes + self.unhandled

    @property
    def room(self) -> int:
        """Bytes that fit now. Another thread may change it at any moment."""
        return max(self._max - self.waiting_bytes, 0)

    def pop_all(self) -> list[T]:
        """Removes and returns all items, in order."""
        with self._lock:
            items = [item for item, _ in self._items]
            self._items.clear()
            self._received += len(items)
            self._bytes = 0
        return items

    def close(self) -> list[T]:
        """Refuses further puts. Returns the waiting items, which must be processed."""
        with self._lock:
            self._closed = True
            return self.pop_all()

    def statistics(self) -> InboxStatistics:
        with self._lock:
            return InboxStatistics(
                self._put, self._received, len(self._items), self.waiting_bytes, self._peak, self._refused
            )


class PendingDeliveries:
    """A queue of deliveries, on the loop. Their bytes still count against the inbox, so that both are bounded together."""

    def __init__(self, inbox: Inbox[Any]) -> None:
        """Args: the inbox of the deliveries."""
        self._inbox = inbox
        self._messages: deque[tuple[int, Message]] = deque()

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def bytes(self) -> int:
        return self._inbox.unhandled

    @property
    def events(self) -> int:
        """Number of waiting events. Any thread may read it."""
        return sum(len(message.events) for _, message in list(self._messages) if isinstance(message, Delivery))

    def add(self, message: Message) -> None:
        """Adds a message, with the current time."""
        self._messages.append((clock.now(), message))
        self._inbox.unhandled += _size(message)

    def pop(self, until: int) -> Message | None:
        """Removes and returns the first message, if it was added by this time, in ns."""
        if not self._messages or self._messages[0][0] > until:
            return None
        _, message = self._messages.popleft()
        self._inbox.unhandled -= _size(message)
        return message

    def pop_all(self) -> list[Message]:
        messages = [message for _, message in self._messages]
        self._messages.clear()
        self._inbox.unhandled = 0
        return messages


def _size(message: Message) -> int:
    return message.nbytes if isinstance(message, Delivery) else 0

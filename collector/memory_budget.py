"""Bounds the memory of messages that were received and are not written yet."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

FREE = (1 << 16) + 4
"""Bytes. Messages up to this size are not counted: a connection has one of them at most, and clocks are compared by such."""


class Grant:
    """Memory for one message, or the request for it."""

    def __init__(self, budget: MemoryBudget, size: int, notify: Callable[[], object]) -> None:
        self._budget, self.size, self.notify = budget, size, notify
        self.granted = self.released = False

    def release(self) -> None:
        """The message is written, or will not come. Idempotent."""
        if not self.released:
            self.released = True
            self._budget.on_released(self)


class MemoryBudget:
    """Bounds the bytes of all messages together. Requests are granted in their order. All calls are for the loop.

    Args:
        limit: bytes.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._waiting: deque[Grant] = deque()
        self.used = 0
        """Bytes that are granted."""
        self.peak = 0
        """Highest value of `used` so far."""

    @property
    def waiting(self) -> int:
        """Number of requests that wait."""
        return sum(not grant.released for grant in self._waiting)

    def request(self, size: int, notify: Callable[[], object]) -> Grant:
        """Requests memory for a message. A message that is larger than the limit is granted alone.

        Args:
            size: bytes of the message.
            notify: called when the request is granted, unless it is granted at once.
        """
        grant = Grant(self, size, notify)
        if not self._waiting and self._fits(grant):
            self._grant(grant)
        else:
            self._waiting.append(grant)
        return grant

    async def acquire(self, size: int) -> Grant:
        """Returns when memory for a message is granted. If it is cancelled, nothing is granted."""
        granted = asyncio.Event()
        grant = self.request(size, granted.set)
        try:
            if not grant.granted:
                await granted.wait()
        except asyncio.CancelledError:
            grant.release()
            raise
        return grant

    def on_released(self, grant: Grant) -> None:
        """Grants the requests that fit now."""
        if grant.granted:
            self.used -= grant.size
        while self._waiting and (self._waiting[0].released or self._fits(self._waiting[0])):
            following = self._waiting.popleft()
            if not following.released:
                self._grant(following)
                following.notify()

    def _fits(self, grant: Grant) -> bool:
        return not self.used or self.used + grant.size <= self.limit

    def _grant(self, grant: Grant) -> None:
        grant.granted = True
        self.used += grant.size
        self.peak = max(self.peak, self.used)

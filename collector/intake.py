"""The messages that a collector has in memory: received, and not written yet."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

FREE = (1 << 16) + 4
"""Messages up to so many bytes are not counted: a connection has one of them at most, and clocks are compared by such."""


class Grant:
    """Leave to hold a message, or the wait for it."""

    def __init__(self, intake: Intake, size: int, granted: Callable[[], object]) -> None:
        self._intake, self.size, self.granted = intake, size, granted
        self.given = self.over = False

    def release(self) -> None:
        """The message is held no more, or will not come. Idempotent."""
        if not self.over:
            self.over = True
            self._intake.released(self)


class Intake:
    """Bounds the bytes of all messages that are held at once. Who asks first is served first; everything is for the loop."""

    def __init__(self, limit: int) -> None:
        """Args: bytes."""
        self.limit = limit
        self._waiting: deque[Grant] = deque()
        self.held = 0
        """Bytes for which there is leave."""
        self.most = 0
        """The most that there ever were."""

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(not grant.over for grant in self._waiting)

    def ask(self, size: int, granted: Callable[[], object]) -> Grant:
        """Leave for a message, at once if there is room and nobody waits; a larger one than the limit is held alone.

        Args:
            size: its bytes.
            granted: called when there is leave, unless that is at once.
        """
        grant = Grant(self, size, granted)
        if not self._waiting and self._fits(grant):
            self._give(grant)
        else:
            self._waiting.append(grant)
        return grant

    async def leave(self, size: int) -> Grant:
        """Leave for a message, as soon as there is; who is cancelled has none."""
        given = asyncio.Event()
        grant = self.ask(size, given.set)
        try:
            if not grant.given:
                await given.wait()
        except asyncio.CancelledError:
            grant.release()
            raise
        return grant

    def released(self, grant: Grant) -> None:
        """One is over: those that wait may follow."""
        if grant.given:
            self.held -= grant.size
        while self._waiting and (self._waiting[0].over or self._fits(self._waiting[0])):
            following = self._waiting.popleft()
            if not following.over:
                self._give(following)
                following.granted()

    def _fits(self, grant: Grant) -> bool:
        return not self.held or self.held + grant.size <= self.limit

    def _give(self, grant: Grant) -> None:
        grant.given = True
        self.held += grant.size
        self.most = max(self.most, self.held)

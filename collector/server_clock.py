"""The collector's clock, which all ranks are compared with."""

from __future__ import annotations

import uuid

from stepscope.runtime.events import clock


class ServerClock:
    """Unix time that never steps: the wall clock as it was at the start, and the monotonic clock since."""

    def __init__(self) -> None:
        self.id = uuid.uuid4().hex
        """Another one after each start, since the wall clock may have been set in between."""
        self._anchor = clock.ClockAnchor.read()

    def now(self) -> int:
        """ns of Unix time."""
        return self._anchor.wall(clock.now())

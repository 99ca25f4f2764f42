"""How long each of a task's many waits may take."""

from __future__ import annotations

import asyncio
from types import TracebackType


class TimeLimit:
    """Ends a wait of a task that takes too long, as `asyncio.timeout` does, and may be entered again and again.

    One timer serves all waits, and is set anew only when it goes off: to set one for every message of a thousand streams
    would cost a collector a twentieth of its time.
    """

    def __init__(self, seconds: float) -> None:
        """Args: that a wait may take. Of the task that makes it."""
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._timer: asyncio.TimerHandle | None = None
        self._began: float | None = None
        self._cancelling = 0
        self._expired = False

    def __enter__(self) -> None:
        """A wait begins. One at a time."""
        assert self._task is not None
        self._began = self._loop.time()
        self._cancelling = self._task.cancelling()
        if self._timer is None:
            self._timer = self._loop.call_at(self._began + self._seconds, self._look)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """It is over.

        Raises:
            TimeoutError: if it took too long.
        """
        self._began = None
        if self._expired:
            self._expired = False
            assert self._task is not None
            if self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
                raise TimeoutError from error

    def close(self) -> None:
        """No further wait comes."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._began is None:
            return
        due = self._began + self._seconds
        if self._loop.time() < due:  # another wait has begun since
            self._timer = self._loop.call_at(due, self._look)
            return
        self._expired = True
        assert self._task is not None
        self._task.cancel()

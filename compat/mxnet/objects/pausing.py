"""Starts of objects in a pause of the recording: they begin when it goes on."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Protocol

from stepscope.runtime import _core
from stepscope.runtime.threads import locks


class Start:
    """One start of an object, which one `stop()` ends."""

    __slots__ = ("caller", "forwarded", "is_forwarded", "span", "stopped")

    def __init__(self, caller: tuple[int, int]) -> None:
        """Args: the thread and the task that started it."""
        self.caller = caller
        self.forwarded: object = None
        """What the tool returned that was told of it, if one was."""
        self.is_forwarded = False
        self.span: _core.span | None = None
        """Its span; `None` while it waits for the end of a pause."""
        self.stopped = False


class Waiting(Protocol):
    """An object whose starts can begin later."""

    def begin(self, start: Start) -> None: ...


class Pausing:
    """Whether recording is paused, and the starts that wait for its end. Any thread."""

    def __init__(self) -> None:
        self._lock = locks.reentrant()
        self.paused = False
        self.resumed: Callable[[], object] = lambda: None
        """Called after the end of a pause."""
        self._waiting: list[tuple[weakref.ref[Waiting], Start]] = []

    def pause(self) -> None:
        """From now on what is started waits."""
        self.paused = True

    def resume(self) -> None:
        """Begins what waits, in the order in which it was started."""
        with self._lock:
            self.paused = False
            waiting, self._waiting = self._waiting, []
        for reference, start in waiting:
            item = reference()
            if item is not None:
                item.begin(start)
        self.resumed()

    def forget(self) -> None:
        """Nothing is paused any more, and what waits never begins: recording has ended."""
        with self._lock:
            self.paused = False
            self._waiting = []
        self.resumed()

    def wait(self, item: Waiting, start: Start) -> bool:
        """Has a start wait; False if recording is not paused."""
        with self._lock:
            if self.paused:
                self._waiting.append((weakref.ref(item), start))
            return self.paused

    def cancel(self, start: Start) -> None:
        """Removes a start that was stopped, if it waits."""
        with self._lock:
            self._waiting = [(item, waiting) for item, waiting in self._waiting if waiting is not start]

    def renew(self) -> None:
        """Begins anew, as in a forked child."""
        self.paused = False
        self.resumed = lambda: None
        self._waiting = []


pausing = Pausing()
"""Of this process."""

os.register_at_fork(after_in_child=pausing.renew)

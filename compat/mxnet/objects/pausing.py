"""Starts of objects in a pause of the recording: they begin when it goes on."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Protocol

from stepscope.runtime import _core


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
    """Whether recording is paused, and who waits for its end. Any thread."""

    def __init__(self) -> None:
        self.paused = False
        self.resumed: Callable[[], object] = lambda: None
        """Called after the end of a pause."""
        self._waiting: list[tuple[weakref.ref[Waiting], Start]] = []
        self._lock = threading.RLock()

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

    def give_up(self, start: Start) -> None:
        """A start was stopped: it waits no more, if it did."""
        if not self._waiting:
            return
        with self._lock:
            for at in range(len(self._waiting) - 1, -1, -1):
                if self._waiting[at][1] is start:
                    del self._waiting[at]
                    return

    def renew(self) -> None:
        """In a forked child: its parent's threads may have held the lock."""
        self._lock = threading.RLock()
        self.paused = False
        self.resumed = lambda: None
        self._waiting = []


pausing = Pausing()
"""Of this process."""

os.register_at_fork(after_in_child=pausing.renew)

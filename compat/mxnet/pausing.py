"""Objects that were started while recording is paused, and begin when it goes on."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol


class Waiting(Protocol):
    """What can begin later."""

    def begin(self) -> None: ...


class Pausing:
    """Whether recording is paused, and who waits for its end. Any thread."""

    def __init__(self) -> None:
        self.paused = False
        self._waiting: list[weakref.ref[Waiting]] = []
        self._lock = threading.RLock()

    def pause(self) -> None:
        """From now on what is started waits."""
        self.paused = True

    def resume(self) -> None:
        """Begins what waits, in the order in which it was started."""
        with self._lock:
            self.paused = False
            waiting, self._waiting = self._waiting, []
        for reference in waiting:
            item = reference()
            if item is not None:
                item.begin()

    def forget(self) -> None:
        """Nothing is paused any more, and what waits never begins: recording has ended."""
        with self._lock:
            self.paused = False
            self._waiting = []

    def wait(self, item: Waiting) -> bool:
        """Has an object wait; False if recording is not paused."""
        with self._lock:
            if self.paused:
                self._waiting.append(weakref.ref(item))
            return self.paused

    def give_up(self, item: Waiting) -> bool:
        """Whether the object waited; then it does so no more: it was stopped before recording went on."""
        with self._lock:
            for at in range(len(self._waiting) - 1, -1, -1):
                if self._waiting[at]() is item:
                    del self._waiting[at]
                    return True
        return False

    @property
    def any_waits(self) -> bool:
        """Whether anything waits; read without the lock."""
        return bool(self._waiting)

    def renew(self) -> None:
        """In a forked child: its parent's threads may have held the lock."""
        self._lock = threading.RLock()
        self.paused = False
        self._waiting = []


pausing = Pausing()
"""Of this process."""

os.register_at_fork(after_in_child=pausing.renew)

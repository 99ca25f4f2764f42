"""Exceptions of parts, for tests: the length of their tracebacks, and one that takes its time."""

from __future__ import annotations

import threading
import traceback


def length(error: BaseException) -> int:
    """Entries of an exception's traceback, each with a frame and all that this holds."""
    return sum(1 for _ in traceback.walk_tb(error.__traceback__))


class LostForWords(Exception):
    """Waits until `over` before it says anything."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.over = threading.Event(), threading.Event()
        self.threads: list[str] = []
        """Names of those on which it was asked."""

    def __str__(self) -> str:
        self.threads.append(threading.current_thread().name)
        self.reached.set()
        assert self.over.wait(60)
        return "at last"

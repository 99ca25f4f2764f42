"""Records the lengths of asyncio queues, as counters by the place that makes the queue."""

from __future__ import annotations

import asyncio
import functools
import inspect
import weakref
from typing import Any

from stepscope.runtime import _core
from stepscope.runtime.display.code_places import described_frame
from stepscope.runtime.events import clock, strings, tracks

CATEGORY = "asyncio queue"
MOST_QUEUES = 256
"""Queues that are followed at the same time."""


class QueueLengths:
    """Follows queues that are made between `begin` and `end`, as long as the program refers to them."""

    def __init__(self) -> None:
        self._followed: list[tuple[weakref.ref[asyncio.Queue[Any]], str]] = []
        self._original: Any = None
        self._wrapper: Any = None

    def begin(self) -> None:
        """Wraps `asyncio.Queue.__init__`."""
        queues: Any = asyncio.Queue
        original: Any = queues.__init__

        @functools.wraps(original)
        def init(queue: asyncio.Queue[Any], *args: Any, **kwargs: Any) -> None:
            original(queue, *args, **kwargs)
            if self._wrapper is not None and len(self._followed) < MOST_QUEUES:
                self._followed.append((weakref.ref(queue), _caller()))

        self._original, self._wrapper = original, init
        queues.__init__ = init

    def end(self) -> None:
        """Restores the original, unless other code has replaced the wrapper since. Forgets the queues."""
        queues: Any = asyncio.Queue
        if self._wrapper is not None and queues.__init__ is self._wrapper:
            queues.__init__ = self._original
        self._wrapper = self._original = None
        self._followed.clear()

    def record(self) -> None:
        """Records the number of items in the queues of each place."""
        lengths: dict[str, int] = {}
        for entry in list(self._followed):
            queue = entry[0]()
            if queue is None:
                self._followed.remove(entry)
            else:
                lengths[entry[1]] = lengths.get(entry[1], 0) + queue.qsize()
        now, track, category = clock.now(), tracks.process(), strings.category(CATEGORY)
        for place, length in lengths.items():
            _core.put(True, strings.intern(place), category, track, now, float(length), b"")


def _caller() -> str:
    """The innermost function outside of asyncio that makes a queue, with its file and line."""
    frame = inspect.currentframe()
    while frame is not None and (frame.f_code.co_filename == __file__ or "/asyncio/" in frame.f_code.co_filename):
        frame = frame.f_back
    return "queue" if frame is None else described_frame(frame)

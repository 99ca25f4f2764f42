"""Records asyncio tasks without annotations, callbacks that block their loop, and the lengths of queues."""

from __future__ import annotations

import asyncio
import inspect
import weakref
from typing import Any

from stepscope.runtime import _core
from stepscope.runtime.accounting.error_log import error_text
from stepscope.runtime.display.code_places import described_frame, place_of
from stepscope.runtime.events import clock, strings, tracks
from stepscope.runtime.loop_threads.lasting_loop import is_lasting
from stepscope.runtime.observers import observing
from stepscope.runtime.observers.observing import SignalSource
from stepscope.runtime.threads.user_code import from_signal_handler

CALLBACKS = "loop callback"
"""Category of callbacks, as spans."""
QUEUES = "asyncio queue"
"""Category of the lengths of queues, as counters by the place that makes the queue."""
LONG_NS = 50_000_000
"""Shorter callbacks are not recorded."""
MOST_QUEUES = 256
"""Queues that are followed at the same time."""


class TaskRuns(SignalSource):
    """Records each task of a watched loop (`annotations/asyncio_tasks.py`) as a span, with its waiting time; slow callbacks of
    asyncio's own loops that are no steps of tasks; and the lengths of queues as long as the program refers to them."""

    signal = "tasks"

    def __init__(self) -> None:
        super().__init__()
        self._queues: list[tuple[weakref.ref[asyncio.Queue[Any]], str]] = []

    def begin(self) -> None:
        """Has the core record tasks, and wraps what makes queues and calls callbacks."""
        _core.record_tasks(True)
        self.replace("__init__", self._following, asyncio.Queue)
        handles: Any = asyncio.events.Handle
        if hasattr(handles, "_run") and hasattr(handles, "_callback"):
            self.replace("_run", self._measuring, handles)
        else:
            self.note = "callbacks of loops are not recorded: asyncio.Handle has no _run and _callback in this Python"

    def end(self) -> None:
        """Ends that. Forgets the queues."""
        _core.record_tasks(False)
        super().end()
        self._queues.clear()

    def _following(self, original: Any) -> Any:
        def init(queue: asyncio.Queue[Any], *args: Any, **kwargs: Any) -> None:
            original(queue, *args, **kwargs)
            if self.users and len(self._queues) < MOST_QUEUES:
                self._queues.append((weakref.ref(queue), _maker()))

        return init

    def record_queues(self) -> None:
        """Records the number of items in the queues of each place."""
        lengths: dict[str, int] = {}
        for entry in list(self._queues):
            queue = entry[0]()
            if queue is None:
                self._queues.remove(entry)
            else:
                lengths[entry[1]] = lengths.get(entry[1], 0) + queue.qsize()
        now, track, category = clock.now(), tracks.process(), strings.category(QUEUES)
        for place, length in lengths.items():
            _core.put(True, strings.intern(place), category, track, now, float(length), b"")

    def _measuring(self, original: Any) -> Any:
        """Wraps the method by which a loop calls everything, including steps of tasks."""
        now, record = _core.now, self._record_callback

        def run(handle: Any) -> Any:
            callback = handle._callback  # before the call, as a callback that cancels its handle removes it
            begin = now()
            try:
                return original(handle)
            finally:
                if now() - begin >= LONG_NS:
                    record(callback, begin)

        return run

    def _record_callback(self, callback: Any, begin: int) -> None:
        if not self.users:
            return  # ended meanwhile
        try:
            # Steps and wake-ups of a task are methods of the task, which is recorded itself.
            if asyncio.isfuture(getattr(callback, "__self__", None)) or is_lasting(asyncio.get_running_loop()):
                return
            _core.past_span(strings.intern(_name(callback)), strings.category(CALLBACKS), begin)
        except Exception as error:
            if from_signal_handler(error):
                raise
            self.note = f"a callback of a loop is not recorded: {error_text(error)}"


def _maker() -> str:
    """The innermost function outside of asyncio that makes a queue, with its file and line."""
    frame = inspect.currentframe()
    while frame is not None and (frame.f_code.co_filename == __file__ or "/asyncio/" in frame.f_code.co_filename):
        frame = frame.f_back
    return "queue" if frame is None else described_frame(frame)


def _name(callback: Any) -> str:
    """Qualified name, file and line of a callback; for a socket's transport, those of the protocol's method."""
    called = _of_protocol(callback)
    for _ in range(8):
        called = getattr(called, "func", called)
    name = getattr(called, "__qualname__", None) or f"{type(called).__qualname__}.__call__"
    place = place_of(called)
    return f"{name} ({place})" if place else str(name)


def _of_protocol(callback: Any) -> Any:
    owner: Any = getattr(callback, "__self__", None)
    if not isinstance(owner, asyncio.BaseTransport) or "read" not in getattr(callback, "__name__", ""):
        return callback
    protocol: Any = getattr(owner, "get_protocol", lambda: None)()
    names = ("data_received", "buffer_updated", "datagram_received")
    return next((method for name in names if (method := getattr(protocol, name, None)) is not None), callback)


TASKS = TaskRuns()
observing.add(TASKS)

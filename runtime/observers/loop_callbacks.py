"""Records callbacks of asyncio loops that block their loop, other than tasks, as spans."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

from stepscope.runtime import _core
from stepscope.runtime.accounting.error_log import error_text
from stepscope.runtime.display.code_places import place_of
from stepscope.runtime.events import strings
from stepscope.runtime.loop_threads.lasting_loop import is_lasting
from stepscope.runtime.threads.user_code import from_signal_handler

CATEGORY = "loop callback"
LONG_NS = 50_000_000
"""Shorter ones are not recorded."""


class LoopCallbacks:
    """Measures callbacks of asyncio loops between `begin` and `end`. It does not see other loops, such as uvloop's."""

    def __init__(self, note: Callable[[str], None]) -> None:
        """Args: gets a message if something cannot be recorded."""
        self._note = note
        self._original: Any = None
        self._wrapper: Any = None

    def begin(self) -> None:
        """Wraps `asyncio.Handle._run`, by which a loop calls everything, including steps of tasks."""
        handles: Any = asyncio.events.Handle
        original: Any = getattr(handles, "_run", None)
        if original is None or not hasattr(handles, "_callback"):
            self._note("callbacks of loops are not recorded: asyncio.Handle has no _run and _callback in this Python")
            return
        now, record = _core.now, self._record

        @functools.wraps(original)
        def run(handle: Any) -> Any:
            callback = handle._callback  # before the call, as a callback that cancels its handle removes it
            begin = now()
            try:
                return original(handle)
            finally:
                if now() - begin >= LONG_NS:
                    record(callback, begin)

        self._original, self._wrapper = original, run
        handles._run = run

    def end(self) -> None:
        """Restores the original, unless other code has replaced the wrapper since."""
        handles: Any = asyncio.events.Handle
        if self._wrapper is not None and handles._run is self._wrapper:
            handles._run = self._original
        self._wrapper = self._original = None

    def _record(self, callback: Any, begin: int) -> None:
        if self._wrapper is None:
            return  # ended meanwhile
        try:
            # Steps and wake-ups of a task are methods of the task, which is recorded itself.
            if asyncio.isfuture(getattr(callback, "__self__", None)) or is_lasting(asyncio.get_running_loop()):
                return
            _core.past_span(strings.intern(_name(callback)), strings.category(CATEGORY), begin)
        except Exception as error:
            if from_signal_handler(error):
                raise
            self._note(f"a callback of a loop is not recorded: {error_text(error)}")


def _name(callback: Any) -> str:
    """Qualified name, file and line of a callback; for a socket's transport, those of the protocol's method."""
    callback = _of_protocol(callback)
    called = callback
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

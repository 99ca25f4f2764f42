"""Greenlets of gevent, eventlet and others: identifies the running one, so that each has its own open spans and row."""

from __future__ import annotations

import _thread
import re
import sys
import weakref
from typing import Any

from stepscope.runtime.threads import native_threads

recorded: int = 0
"""Number of greenlets that have recorded events in this process."""

WITHOUT_THREADS = {
    "gevent": "gevent.monkey.patch_all(thread=False)",
    "eventlet": "eventlet.monkey_patch(thread=False)",
}
"""Calls by which a library does not replace the threads of the standard library."""

_seen: weakref.WeakSet[Any] = weakref.WeakSet()

_AUTOMATIC = re.compile(r"Greenlet-\d+|None|")
"""Default names."""


def running() -> tuple[str, int, None] | None:
    """Returns name and number of the greenlet that runs in this thread; `None` in a thread's main greenlet.

    A greenlet with a default name gets the name of its function, because later greenlets with the same name use its row again.
    """
    getcurrent: Any = getattr(sys.modules.get("greenlet"), "getcurrent", None)
    current = None if getcurrent is None else getcurrent()
    if current is None or current.parent is None:
        return None
    if current not in _seen:
        global recorded
        recorded += 1
        _seen.add(current)
    name = str(getattr(current, "name", ""))
    if _AUTOMATIC.fullmatch(name):
        function = getattr(current, "_run", None)
        name = getattr(function, "__qualname__", None) or type(current).__name__
    return name, id(current), None


def threads_replaced_by() -> str:
    """Returns the library that has replaced the standard library's threads by greenlets (monkey patching); empty if none."""
    return _library(_thread.start_new_thread)


def refusal() -> str:
    """Returns why a profiler cannot start if a library had replaced the threads before stepscope was imported, so that the runtime
    has no native ones, and what to do; empty if none had."""
    library = _library(native_threads.start_new_thread)
    if not library:
        return ""
    return (
        f"{library} has replaced the threads of the standard library by greenlets before stepscope was imported, and a profiler "
        f"would block the program in them. Call {WITHOUT_THREADS[library]}; or import stepscope first; or start the profiler in "
        "a parent process without greenlets, and call stepscope.join() in this one"
    )


def _library(start_new_thread: object) -> str:
    library = str(getattr(start_new_thread, "__module__", "")).partition(".")[0]
    return library if library in WITHOUT_THREADS else ""

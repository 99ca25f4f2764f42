"""Which threads are the runtime's own."""

from __future__ import annotations

import threading
import weakref
from asyncio import AbstractEventLoop

_loops: weakref.WeakSet[AbstractEventLoop] = weakref.WeakSet()


def register_loop(loop: AbstractEventLoop) -> None:
    """Says that a loop is the runtime's own, so that its worker threads are ours as well."""
    _loops.add(loop)


def own_threads() -> list[threading.Thread]:
    """The threads that the runtime runs now."""
    return [thread for thread in threading.enumerate() if is_ours(thread)]


def is_ours(thread: threading.Thread) -> bool:
    """Whether the runtime runs it."""
    # anyio's worker threads have the loop that they work for.
    return thread.name.startswith("stepscope") or getattr(thread, "loop", None) in _loops

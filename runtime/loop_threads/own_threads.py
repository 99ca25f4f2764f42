"""The threads of the runtime."""

from __future__ import annotations

import threading
import weakref
from asyncio import AbstractEventLoop

_loops: weakref.WeakSet[AbstractEventLoop] = weakref.WeakSet()


def register_loop(loop: AbstractEventLoop) -> None:
    """Registers a loop of the runtime, so that its worker threads count as the runtime's, too."""
    _loops.add(loop)


def own_threads() -> list[threading.Thread]:
    """The current threads of the runtime."""
    return [thread for thread in threading.enumerate() if is_own(thread)]


def is_own(thread: threading.Thread) -> bool:
    """Whether a thread is one of the runtime's."""
    # anyio's worker threads have an attribute for their loop.
    return thread.name.startswith("stepscope") or getattr(thread, "loop", None) in _loops

"""The threads of the runtime."""

from __future__ import annotations

import threading


def own_threads() -> list[threading.Thread]:
    """The current threads of the runtime."""
    return [thread for thread in threading.enumerate() if is_own(thread)]


def is_own(thread: threading.Thread) -> bool:
    """Whether a thread is one of the runtime's."""
    return thread.name.startswith("stepscope")

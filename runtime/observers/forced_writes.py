"""Records `os.fsync` and `os.fdatasync`, with which a program waits for writes, as spans."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any

from stepscope.runtime import _core
from stepscope.runtime.display.code_places import caller
from stepscope.runtime.observers import observing
from stepscope.runtime.observers.observing import SignalSource

CATEGORY = "forced write"


class ForcedWrites(SignalSource):
    """Replaces the two functions. Calls of stepscope's own threads are not recorded."""

    signal = "writes"

    def __init__(self) -> None:
        super().__init__()
        self._replaced: list[tuple[str, Any, Any]] = []

    def begin(self) -> None:
        """Replaces `os.fsync` and `os.fdatasync`."""
        for name in ("fsync", "fdatasync"):
            original = getattr(os, name)
            ours = functools.wraps(original)(_around(f"os.{name}", original))
            setattr(os, name, ours)
            self._replaced.append((name, original, ours))

    def end(self) -> None:
        """Restores the original functions, unless other code has replaced the wrappers since."""
        while self._replaced:
            name, original, ours = self._replaced.pop()
            if getattr(os, name) is ours:
                setattr(os, name, original)


def _around(name: str, original: Callable[..., None]) -> Callable[..., None]:
    def sync(*args: Any, **kwargs: Any) -> None:
        if threading.current_thread().name.startswith("stepscope"):
            return original(*args, **kwargs)
        with _core.span(name, category=CATEGORY, place=caller()):
            return original(*args, **kwargs)

    return sync


observing.add(ForcedWrites())

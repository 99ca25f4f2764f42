"""Records `os.fsync` and `os.fdatasync`, with which a program waits for writes, as spans."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from stepscope.runtime import _core
from stepscope.runtime.display.code_places import caller
from stepscope.runtime.observers import observing
from stepscope.runtime.observers.observing import SignalSource

CATEGORY = "forced write"


class ForcedWrites(SignalSource):
    """Replaces the two functions. Calls of stepscope's own threads are not recorded."""

    signal = "writes"

    def begin(self) -> None:
        """Replaces `os.fsync` and `os.fdatasync`."""
        for name in ("fsync", "fdatasync"):
            self.replace(name, partial(_recorded, f"os.{name}"), os)


def _recorded(name: str, original: Callable[..., None]) -> Callable[..., None]:
    def sync(*args: Any, **kwargs: Any) -> None:
        if threading.current_thread().name.startswith("stepscope"):
            return original(*args, **kwargs)
        with _core.span(name, category=CATEGORY, place=caller()):
            return original(*args, **kwargs)

    return sync


observing.add(ForcedWrites())

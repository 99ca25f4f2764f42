"""Notices of new plans and requests, where the operating system gives any."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from stepscope.runtime.control.entry_points.file_events import FileEvents

WATCHED = ("plan-", "request-", "unable-")
"""Files that a rank wakes up for."""


class RecordEvents:
    """Watches the directory of the run that a rank takes part in, which may change."""

    def __init__(self, changed: Callable[[], object]) -> None:
        """Args: called from a thread of its own when there may be something new."""
        self._changed = changed
        self._directory: Path | None = None
        self._events: FileEvents | None = None

    def follow(self, directory: Path | None) -> None:
        """Watches this directory from now on, `None` for none."""
        if directory == self._directory:
            return
        self.close()
        self._directory = directory
        if directory is not None:
            self._events = FileEvents(directory, lambda name: name.startswith(WATCHED), self._changed)
            self._events.start()

    def close(self) -> None:
        """Watches nothing any more."""
        events, self._events, self._directory = self._events, None, None
        if events is not None:
            events.close()

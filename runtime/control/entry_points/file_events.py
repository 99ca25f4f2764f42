"""Notices from the operating system that a file may have changed, where `watchfiles` is installed."""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from stepscope.runtime.threads.background_call import start
from stepscope.runtime.threads.native_threads import Event, Thread

log = logging.getLogger("stepscope")

TURN_MS = 50
"""Milliseconds between two checks of the watching thread whether it must end."""


class FileEvents:
    """Calls back when something in a directory changes, from a daemon thread named `stepscope control files`.

    It only speeds up polling: a notice may be missing, as on shared file systems, or come without a change.
    """

    def __init__(self, directory: Path, wanted: Callable[[str], bool], changed: Callable[[], object]) -> None:
        """Args: a directory; a filter for file names in it; called when one of these files may have changed."""
        self._stop = Event()
        self._directory, self._wanted, self._changed = directory, wanted, changed
        self._thread: Thread | None = None

    def start(self) -> bool:
        """Begins to watch. Returns false if `watchfiles` is not installed or the directory does not exist."""
        try:
            watchfiles = importlib.import_module("watchfiles")
        except ImportError:
            return False
        if not self._directory.is_dir():
            return False
        self._thread = Thread(target=self._run, args=(watchfiles,), name="stepscope control files", daemon=True)
        start(self._thread)
        return True

    @property
    def running(self) -> bool:
        """Whether notices still come."""
        return self._thread is not None and self._thread.is_alive()

    def close(self) -> None:
        """Ends the thread and waits for it, about `TURN_MS`."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(20 * TURN_MS / 1000)

    def _counts(self, change: object, path: str) -> bool:
        return self._wanted(Path(path).name)

    def _run(self, watchfiles: Any) -> None:
        try:
            changes: Iterator[set[tuple[Any, str]]] = watchfiles.watch(
                self._directory,
                watch_filter=self._counts,
                debounce=200,
                step=TURN_MS,
                stop_event=self._stop,
                raise_interrupt=False,
                recursive=False,
            )
            for _ in changes:
                self._changed()
        except Exception as error:  # no watches are free, or the directory was deleted: polling continues
            log.info("no notices for %s any more, it is looked at from time to time: %r", self._directory, error)

"""Calls of `on_trace_ready`, on a thread of their own."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable
from typing import Any

log = logging.getLogger("stepscope")

KEPT_ERRORS = 16
"""Exceptions that are kept; the rest is counted."""


class Callbacks:
    """Calls a function with one view after the other, in order, off the training thread.

    What it raises is logged, kept and counted, and disturbs neither training nor the calls that follow. The thread lives
    from the first call to `finish`, and keeps no interpreter from exiting.
    """

    def __init__(self, callback: Callable[[Any], Any]) -> None:
        self._callback = callback
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ending = False
        self._pid = os.getpid()
        self.errors: list[Exception] = []
        """What it raised, the first ones."""
        self.failed = 0
        """Calls that raised."""
        self.made = 0
        """Calls that have returned or raised."""

    def put(self, view: Any) -> None:
        """Has the function called with this; any thread."""
        with self._lock:
            if self._thread is None or self._ending:
                before, self._queue, self._ending = self._thread, queue.SimpleQueue(), False
                self._thread = threading.Thread(
                    target=self._run, args=(self._queue, before), name="stepscope on_trace_ready", daemon=True
                )
                self._thread.start()
            self._queue.put(view)

    def finish(self) -> None:
        """Waits for the calls that were asked for, however long they take, and ends the thread.

        In such a call itself it does not wait, nor in a forked child, which has no such thread.
        """
        with self._lock:
            thread = self._thread
            if thread is None or self._pid != os.getpid():
                return
            if not self._ending:
                self._ending = True
                self._queue.put(None)
        if thread is not threading.current_thread():
            thread.join()

    def _run(self, waiting: queue.SimpleQueue[Any], before: threading.Thread | None) -> None:
        if before is not None:
            before.join()  # calls do not overlap
        while (view := waiting.get()) is not None:
            try:
                self._callback(view)
            except Exception as error:
                self.failed += 1
                if len(self.errors) < KEPT_ERRORS:
                    self.errors.append(error)
                log.warning("on_trace_ready raised, training goes on: %r", error, exc_info=error)
            finally:
                self.made += 1
            del view

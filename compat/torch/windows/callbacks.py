"""Calls of `on_trace_ready`, on threads of their own."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Any

from stepscope.runtime.accounting.error_log import ErrorLog, error_text
from stepscope.runtime.threads import locks
from stepscope.runtime.threads.background_call import BackgroundCall
from stepscope.runtime.threads.user_code import run

log = logging.getLogger("stepscope")

LOG_AFTER_S = 30.0
"""Seconds that `stop()` waits for callbacks before the log says so."""


class Callbacks:
    """Calls a function with one view after the other, in order, off the training thread.

    What it raises is logged, kept and counted, and disturbs neither training nor the calls that follow. Each call has a thread,
    which waits for the call before it and keeps no interpreter from exiting.
    """

    def __init__(self, callback: Callable[[Any], Any]) -> None:
        self._callback = callback
        self._lock = locks.reentrant()
        self._last: BackgroundCall[None] | None = None
        """The latest call that was asked for."""
        self._thread: threading.Thread | None = None
        """The one on which the function is called now."""
        self._pid = os.getpid()
        self.raised: ErrorLog[Exception] = ErrorLog()

    def put(self, view: Any) -> None:
        """Has the function called with this; any thread."""
        with self._lock:
            call = self._last = BackgroundCall(self._call, view, self._last, name="stepscope on_trace_ready")
        call.start()

    def finish(self) -> None:
        """Waits for the calls that were asked for, however long they take.

        In such a call itself it does not wait, nor in a forked child, which has no such thread.
        """
        last = self._last
        if last is None or self._pid != os.getpid() or self._thread is threading.current_thread():
            return
        last.start()  # put() may have been interrupted before
        if not last.wait(LOG_AFTER_S):
            log.warning(
                "stop() has waited for on_trace_ready for %g s and goes on waiting: a callback that waits for other ranks, or "
                "for the training thread, never returns; py-spy dump --pid %d shows where it is",
                LOG_AFTER_S,
                os.getpid(),
            )
        last.result()

    def _call(self, view: Any, before: BackgroundCall[None] | None) -> None:
        if before is not None:
            before.start().wait()
        self._thread = threading.current_thread()
        try:
            run(self._callback, view)
        except Exception as error:
            log.warning("on_trace_ready raised, training goes on: %s", error_text(error), exc_info=error)
            self.raised.record("on_trace_ready", error)
        finally:
            self._thread = None

"""Calls of `on_trace_ready`, on a thread of their own."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from stepscope.runtime.accounting.error_log import ErrorLog, error_text
from stepscope.runtime.threads.job_thread import JobThread
from stepscope.runtime.threads.user_code import run

log = logging.getLogger("stepscope")

LOG_AFTER_S = 30.0
"""Seconds that `stop()` waits for callbacks before the log says so."""


class Callbacks:
    """Calls a function with one view after the other, in order, off the training thread.

    Its exception is logged, stored and counted, and disturbs neither training nor the calls that follow. The thread lives
    while there are calls, and keeps no interpreter from exiting.
    """

    def __init__(self, callback: Callable[[Any], Any]) -> None:
        self._callback = callback
        self._jobs = JobThread("stepscope on_trace_ready")
        self._pid = os.getpid()
        self.raised: ErrorLog[BaseException] = ErrorLog()

    def put(self, view: Any) -> None:
        """Has the function called with this; any thread. Raises `RuntimeError` if the system gives no further
        thread."""
        self._jobs.submit(partial(self._call, view))

    def finish(self) -> None:
        """Waits for the calls that were asked for, however long they take.

        In such a call itself it does not wait, nor in a forked child, which has no such thread.
        """
        if self._pid == os.getpid() and not self._jobs.wait(LOG_AFTER_S):
            log.warning(
                "stop() has waited for on_trace_ready for %g s and goes on waiting: a callback that waits for other ranks, or "
                "for the training thread, never returns; py-spy dump --pid %d shows where it is",
                LOG_AFTER_S,
                os.getpid(),
            )
            self._jobs.wait()

    def _call(self, view: Any) -> None:
        try:
            run(self._callback, view)
        except BaseException as error:
            log.warning("on_trace_ready raised, training goes on: %s", error_text(error), exc_info=error)
            self.raised.record("on_trace_ready", error)

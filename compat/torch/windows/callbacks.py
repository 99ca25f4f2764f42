"""Calls of `on_trace_ready`, on a thread of their own."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Any

from stepscope.runtime.accounting.error_log import ErrorLog, error_text
from stepscope.runtime.threads import locks
from stepscope.runtime.threads.background_call import BackgroundCall
from stepscope.runtime.threads.native_threads import SimpleQueue
from stepscope.runtime.threads.user_code import run

log = logging.getLogger("stepscope")

LOG_AFTER_S = 30.0
"""Seconds that `stop()` waits for callbacks before the log says so."""


class Callbacks:
    """Calls a function with one view after the other, in order, off the training thread.

    Its exception is logged, stored and counted, and disturbs neither training nor the calls that follow. The thread lives
    from the first call to `finish`, and keeps no interpreter from exiting.
    """

    def __init__(self, callback: Callable[[Any], Any]) -> None:
        self._callback = callback
        self._lock = locks.reentrant()
        self._turn = _Turn(self._call, None)
        self._ended = self._turn
        self._pid = os.getpid()
        self.raised: ErrorLog[Exception] = ErrorLog()

    def put(self, view: Any) -> None:
        """Has the function called with this; any thread. Raises `RuntimeError` if the system gives no further
        thread."""
        with self._lock:
            turn = self._turn
            turn.waiting.put(view)
        turn.work.start()

    def finish(self) -> None:
        """Waits for the calls that were asked for, however long they take, and ends the thread.

        In such a call itself it does not wait, nor in a forked child, which has no such thread.
        """
        if self._pid != os.getpid():
            return
        following = _Turn(self._call, self._turn)
        with self._lock:
            # No call between: a signal handler that makes calls, or raises, finds the one turn or the other.
            if self._turn.work.started:
                self._ended, self._turn = self._turn, following
        self._ended.finish()

    def _call(self, view: Any) -> None:
        try:
            run(self._callback, view)
        except Exception as error:
            log.warning("on_trace_ready raised, training goes on: %s", error_text(error), exc_info=error)
            self.raised.record("on_trace_ready", error)


class _Turn:
    """The calls from one `finish` to the next."""

    def __init__(self, call: Callable[[Any], None], before: _Turn | None) -> None:
        self.waiting: SimpleQueue[Any] = SimpleQueue()
        self.work: BackgroundCall[None] = BackgroundCall(self._run, name="stepscope on_trace_ready", elsewhere=True)
        self._call, self._before = call, before
        self._thread: threading.Thread | None = None

    def finish(self) -> None:
        """Ends it when what waits is done; waits for that, unless the caller is one of the calls."""
        if not self.work.started:
            return
        self.waiting.put(None)
        if self._thread is threading.current_thread():
            return
        try:
            self.work.result(LOG_AFTER_S)
        except TimeoutError:
            if self.work.finished:  # the callback's own
                raise
            log.warning(
                "stop() has waited for on_trace_ready for %g s and goes on waiting: a callback that waits for other ranks, or "
                "for the training thread, never returns; py-spy dump --pid %d shows where it is",
                LOG_AFTER_S,
                os.getpid(),
            )
            self.work.result()

    def _run(self) -> None:
        self._thread = threading.current_thread()
        before, self._before = self._before, None
        if before is not None and before.work.started:  # calls do not overlap
            before.waiting.put(None)
            before.work.wait()
        while (view := self.waiting.get()) is not None:
            self._call(view)
            del view

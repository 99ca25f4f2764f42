"""The thread that analyses windows, one after the other."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeVar

import stepscope.runtime.lifecycle.interpreter_exit as _exit
from stepscope.runtime.loop_threads.loop_thread import DaemonExecutor
from stepscope.runtime.threads.background_call import call_before_threads_end

assert _exit is not None
# Hooks run in reverse order of registration: those of the runtime, which close profilers, come after ours.

T = TypeVar("T")

log = logging.getLogger("stepscope")

EXIT_SECONDS: Final = 60.0
"""How long the interpreter's exit waits for analyses at most; raw data of what is left are kept."""


class AnalysisThread:
    """Runs jobs in order, on a daemon thread."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begins anew, as in a forked child, where the jobs are the parent's."""
        self._executor = DaemonExecutor(1)

    def call(self, job: Callable[[], T]) -> T:
        """Has a job done, and returns what it returns, or raises what it raises."""
        return self._executor.submit(job).result()

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Has a job done; what it raises is in the future, and in the log."""
        return self._executor.submit(_logged, job)

    def wait(self, seconds: float) -> None:
        """Waits until nothing is left to do, or the time is over."""
        if not self._executor.threads or self.is_current():
            return
        try:
            self._executor.submit(bool).result(seconds)
        except TimeoutError:
            log.error("an analysis was not finished in %g s: its raw data are kept", seconds)

    def is_current(self) -> bool:
        """True if the caller is a job."""
        return threading.current_thread() in self._executor.threads


def _logged(job: Callable[[], T]) -> T:
    try:
        return job()
    except BaseException as error:
        log.error("an analysis failed: %s: %s", type(error).__name__, error)
        raise


analysis_thread: Final = AnalysisThread()

call_before_threads_end(lambda: analysis_thread.wait(EXIT_SECONDS))
os.register_at_fork(after_in_child=analysis_thread.forget)

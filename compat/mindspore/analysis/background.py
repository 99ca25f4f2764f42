"""The thread that analyses windows, one after the other."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

import stepscope.runtime.lifecycle.interpreter_exit as _exit
from stepscope.runtime.threads import locks
from stepscope.runtime.threads.background_call import call_before_threads_end, start

assert _exit is not None
# Hooks run in reverse order of registration: those of the runtime, which close profilers, come after ours.

T = TypeVar("T")

log = logging.getLogger("stepscope")

EXIT_SECONDS: Final = 60.0
"""How long the interpreter's exit waits for analyses at most; raw data of what is left are kept."""


class AnalysisThread:
    """Runs jobs in order, on a daemon thread that is there while there are any."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begins anew, as in a forked child, where the jobs are the parent's."""
        self._jobs: deque[tuple[Future[Any], Callable[[], Any], bool]] = deque()
        self._lock = locks.reentrant()
        self._thread: threading.Thread | None = None

    def call(self, job: Callable[[], T]) -> T:
        """Has a job done, and returns what it returns, or raises what it raises."""
        return self._submit(job, awaited=True).result()

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Has a job done; what it raises is in the future, and in the log."""
        return self._submit(job, awaited=False)

    def _submit(self, job: Callable[[], T], *, awaited: bool) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            self._jobs.append((future, job, awaited))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="stepscope analysis", daemon=True)
                start(self._thread)
        return future

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._thread = None
                    return
                future, job, awaited = self._jobs.popleft()
            try:
                result = job()
            except BaseException as error:
                if not awaited:
                    log.error("an analysis failed: %s: %s", type(error).__name__, error)
                future.set_exception(error)
            else:
                future.set_result(result)

    def wait(self, seconds: float) -> None:
        """Waits until nothing is left to do, or the time is over."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(seconds)
            if thread.is_alive():
                log.error("an analysis was not finished in %g s: its raw data are kept", seconds)

    def is_current(self) -> bool:
        """True if the caller is a job."""
        return self._thread is threading.current_thread()


analysis_thread: Final = AnalysisThread()

call_before_threads_end(lambda: analysis_thread.wait(EXIT_SECONDS))
os.register_at_fork(after_in_child=analysis_thread.forget)

"""The thread that analyses windows, one after the other."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeVar

import stepscope.runtime.lifecycle.interpreter_exit as _exit
from stepscope.runtime.threads.background_call import call_before_threads_end
from stepscope.runtime.threads.job_thread import JobThread

assert _exit is not None
# Hooks run in reverse order of registration: those of the runtime, which close profilers, come after ours.

T = TypeVar("T")

log = logging.getLogger("stepscope")

EXIT_SECONDS: Final = 60.0
"""Seconds for which the interpreter's exit waits for analyses; the raw data of the others are kept."""

analysis_thread: Final = JobThread("stepscope analysis")


def analyse_later(job: Callable[[], T]) -> Future[T]:
    """Queues a job. Its exception is in the future, and in the log."""

    def logged() -> T:
        try:
            return job()
        except BaseException as error:
            log.error("an analysis failed: %s: %s", type(error).__name__, error)
            raise

    return analysis_thread.submit(logged)


def wait_for_analyses(seconds: float) -> None:
    """Waits until all are done, or the time is over."""
    if not analysis_thread.wait(seconds):
        log.error("an analysis was not finished in %g s: its raw data are kept", seconds)


call_before_threads_end(lambda: wait_for_analyses(EXIT_SECONDS))
os.register_at_fork(after_in_child=analysis_thread.forget)

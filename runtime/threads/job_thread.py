"""A thread that runs jobs, one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from stepscope.runtime.threads import locks
from stepscope.runtime.threads.background_call import BackgroundCall
from stepscope.runtime.threads.native_threads import get_ident

T = TypeVar("T")


class JobThread:
    """Runs jobs in order, on a daemon thread that is there while there are any."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.forget()

    def forget(self) -> None:
        """Begins anew, as in a forked child, where the jobs are the parent's."""
        self._jobs: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._lock = locks.reentrant()
        self._work: BackgroundCall[None] | None = None
        self._busy = False
        self._thread = 0

    @property
    def idle(self) -> bool:
        """Whether all jobs are done."""
        return not self._busy

    @property
    def is_current(self) -> bool:
        """Whether the caller is a job."""
        return self._busy and self._thread == get_ident()

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Has a job done; what it raises is in the future. Raises `RuntimeError` if the system gives no further thread."""
        future: Future[T] = Future()
        with self._lock:
            self._jobs.append((future, job))
            if self._work is None or not self._busy:
                self._work = BackgroundCall(self._run, name=self._name, elsewhere=True)
                self._busy = True
            work = self._work
        work.start()
        return future

    def wait(self, seconds: float | None = None) -> bool:
        """Waits until nothing is left to do; not in a job. Returns whether that is so, after so many seconds at most."""
        work = self._work
        if work is None or not work.started or self.is_current:
            return True
        try:
            work.result(seconds)
        except TimeoutError:
            return False
        return True

    def _run(self) -> None:
        self._thread = get_ident()
        while True:
            with self._lock:
                if not self._jobs:
                    self._busy = False
                    return
                future, job = self._jobs.popleft()
            try:
                result = job()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
            del future, job

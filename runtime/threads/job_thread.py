"""A thread that runs jobs, one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from stepscope.runtime.threads.background_call import BackgroundCall
from stepscope.runtime.threads.native_threads import get_ident

T = TypeVar("T")


class _Shift:
    """The jobs of one thread, from its begin to its end."""

    def __init__(self, run: Callable[[_Shift], None], name: str, before: _Shift | None = None) -> None:
        self.jobs: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self.over = False
        """Whether jobs that come now belong to the next one. The thread looks for jobs once more after it has set this."""
        self.before = before
        self.work: BackgroundCall[None] = BackgroundCall(run, self, name=name, elsewhere=True)

    @property
    def idle(self) -> bool:
        """Whether it has not begun, and the one before has ended."""
        return not (self.jobs or self.work.started) and (self.before is None or self.before.work.finished)


class JobThread:
    """Runs jobs in order, on a daemon thread that is there while there are any.

    There is no lock: a signal handler may interrupt any method, call others, wait, and raise.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.forget()

    def forget(self) -> None:
        """Begins anew, as in a forked child, where the jobs are the parent's."""
        self._shift = _Shift(self._run, self._name)
        self._thread = 0
        """The thread that runs a job."""

    @property
    def idle(self) -> bool:
        """Whether all jobs are done."""
        return self._shift.idle

    @property
    def is_current(self) -> bool:
        """Whether the caller is a job."""
        return self._thread == get_ident()

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Has a job done; what it raises is in the future. Raises `RuntimeError` if the system gives no further thread."""
        entry: tuple[Future[T], Callable[[], T]] = Future(), job
        while True:
            shift = self._shift
            shift.jobs.append(entry)
            shift.work.start()
            if not shift.over:
                break
            try:
                shift.jobs.remove(entry)
            except ValueError:  # its thread has found it
                break
        return entry[0]

    def wait(self, seconds: float | None = None) -> bool:
        """Waits until nothing is left to do; not in a job. Returns whether that is so, after so many seconds at most."""
        shift = self._shift
        if self.is_current or shift.idle:
            return True
        if not shift.jobs and not shift.work.started and shift.before is not None:
            shift = shift.before
        try:
            shift.work.result(seconds)
        except TimeoutError:
            return False
        return True

    def _run(self, shift: _Shift) -> None:
        before, shift.before = shift.before, None
        if before is not None:
            before.work.wait()
        while True:
            try:
                future, job = shift.jobs.popleft()
            except IndexError:
                if shift.over:
                    return
                self._shift = _Shift(self._run, self._name, shift)
                shift.over = True
                continue
            self._thread = get_ident()
            try:
                result = job()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
            self._thread = 0
            del future, job

"""Work that must not end or wait with its caller, which a signal handler may have interrupted anywhere."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

from stepscope.runtime.promise import LOOK, Promise

T = TypeVar("T")


class Work(Generic[T]):
    """Some work on a daemon thread of its own.

    Where no thread can be started any more, as late in the interpreter's exit, it is done by who makes this.
    """

    def __init__(self, work: Callable[..., T], *args: Any, name: str) -> None:
        """Args: a function and its arguments; name of the thread, ours begin with `stepscope`."""
        self._done: Promise[T] = Promise()
        self._work: Callable[[], T] | None = partial(work, *args)
        self._unclaimed = threading.Lock()
        self._interrupted: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._run()
        except BaseException as error:
            # A signal handler raised. Whether the thread was started by then is not known: only one of us does the work.
            self._interrupted = error
            self._run()

    def _run(self) -> None:
        if not self._unclaimed.acquire(blocking=False):
            return
        work, self._work = self._work, None  # nothing that it needs is kept longer
        assert work is not None
        try:
            result = work()
        except BaseException as error:
            self._done.fail(error)
        else:
            self._done.give(result)

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self._done.over

    @property
    def done(self) -> bool:
        """Whether it has returned something."""
        return self._done.over and not self._done.failed

    def finish(self, look: Callable[[], object]) -> T:
        """Waits for the end, also when a signal handler raises meanwhile; that is raised afterwards.

        Args:
            look: called now and then; what it raises ends the wait, and the work goes on.
        """
        while not self._done.over:
            try:
                self._done.wait(LOOK)
            except BaseException as error:
                self._interrupted = error
            if not self._done.over:
                look()
        return self.result()

    def result(self, timeout: float | None = None) -> T:
        """Waits for what the work returns, and for its thread to end.

        Raises:
            TimeoutError: if it is not done after `timeout` seconds.
            BaseException: what the work raised, or a signal handler while it was begun.
        """
        try:
            result = self._done.result(timeout)
        finally:
            if self._done.over and self._thread.is_alive() and self._thread is not threading.current_thread():
                self._thread.join(timeout)
        interrupted, self._interrupted = self._interrupted, None
        if interrupted is not None:
            raise interrupted
        return result

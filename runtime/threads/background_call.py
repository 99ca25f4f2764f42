"""Threads of ours, and work on them that goes on when its caller is interrupted."""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, Generic, Self, TypeVar

from stepscope.runtime import _core
from stepscope.runtime.threads import native_threads
from stepscope.runtime.threads.greenlets import threads_replaced_by
from stepscope.runtime.threads.native_threads import Lock, Thread, get_ident, on_main_thread
from stepscope.runtime.threads.one_shot import OneShot

T = TypeVar("T")

_start: Callable[[Callable[..., object], tuple[object, ...]], int] = native_threads.start_new_thread


def start(thread: Thread) -> None:
    """Starts a thread that blocks all asynchronous signals from its first instruction, and so do the threads that it starts:
    the program's signals go to the program's threads.

    An exception of a signal handler inside of `Thread.start` can leave a lock that the new thread needs. So that is called where
    no handler runs.

    Raises:
        RuntimeError: if the system gives no further thread.
    """
    if not on_main_thread():
        _core.without_signals(thread.start)
        return
    started: OneShot[None] = OneShot()

    def begin() -> None:
        try:
            thread.start()
        except BaseException as error:
            started.set_exception(error)
        else:
            started.set_result(None)

    start_unnamed(begin)
    started.result()


def start_unnamed(function: Callable[..., object], *args: object) -> None:
    """Starts a thread, and waits for nothing: so a signal handler may call it that has interrupted `Thread.start`.

    Raises:
        RuntimeError: if the system gives no further thread.
    """
    _core.without_signals(_start, function, args)


def start_also_at_exit() -> None:
    """To be called when the main thread has ended, with work that needs threads yet to be done.

    CPython waits for others then and starts further ones meanwhile; 3.12.0 and 3.12.1 start none (gh-113964).
    """
    global _start
    if sys.version_info[:3] in ((3, 12, 0), (3, 12, 1)):
        # Ours, and those of the libraries that exporters write with.
        _start = _core.start_thread
        native_threads.set_thread_start(_start, everywhere=not threads_replaced_by())


def call_before_threads_end(function: Callable[[], object]) -> None:
    """Has a function called when the main thread has ended, before CPython waits for other threads and pools end; the last
    that was registered first. Where Python has no such hook, at the interpreter's exit."""
    getattr(threading, "_register_atexit", atexit.register)(function)


def frames() -> dict[int, FrameType]:
    """What each thread of Python's is inside of, by its ident."""
    return sys._current_frames()  # pyright: ignore[reportPrivateUsage]


def join(thread: threading.Thread, seconds: float | None = None) -> None:
    """Waits for the end of a thread of ours, for ever if no time is given.

    gevent gives the threads that it finds another `join`, which waits in a hub.
    """
    Thread.join(thread, seconds)


class BackgroundCall(Generic[T]):
    """Some work on a daemon thread of its own, once it is begun: by `start`, or by `result`. It is done once."""

    def __init__(self, work: Callable[..., T], *args: Any, name: str, elsewhere: bool = False) -> None:
        """Args: a function and its arguments; name of the thread, ours begin with `stepscope`; whether the thread that begins it
        must not do it, where no thread can be started any more, as late in the interpreter's exit."""
        self._name = name
        self._elsewhere = elsewhere
        self._done: OneShot[T] = OneShot()
        self._work: Callable[[], T] | None = partial(work, *args)
        self._unclaimed = Lock()
        self._begun = False
        self._thread: Thread | None = None

    def start(self) -> Self:
        """Has it done; a second time changes nothing.

        Raises:
            RuntimeError: if it must be done elsewhere, and the system gives no further thread.
        """
        if not self._begun:
            try:
                thread = Thread(target=lambda: self._run(thread), name=self._name, daemon=True)
                start(thread)
            except RuntimeError:
                if self._elsewhere:
                    raise
                self._run(None)
            self._begun = True
        return self

    def _run(self, thread: Thread | None) -> None:
        if not self._unclaimed.acquire(blocking=False):
            return  # a signal handler has interrupted the first start after its thread had begun
        self._thread = thread
        work, self._work = self._work, None  # nothing that it needs lives longer
        assert work is not None
        try:
            result = work()
        except BaseException as error:
            self._done.set_exception(error)
        else:
            self._done.set_result(result)

    @property
    def started(self) -> bool:
        """Whether a thread was asked to do it."""
        return self._begun

    @property
    def finished(self) -> bool:
        """Whether it has ended."""
        return self._done.done

    @property
    def succeeded(self) -> bool:
        """Whether it has returned something."""
        return self._done.done and not self._done.failed

    def wait(self, timeout: float | None = None) -> bool:
        """Waits for the end of the work, `timeout` seconds at most, but not for that of its thread; returns whether it has ended."""
        return self._done.wait(timeout)

    def result(self, timeout: float | None = None) -> T:
        """Waits for the result of the work, and for its thread to end.

        Raises:
            TimeoutError: if it is not done after `timeout` seconds.
            BaseException: what the work raised.
        """
        self.start()
        try:
            return self._done.result(timeout)
        finally:
            thread = self._thread
            if self._done.done and thread is not None and thread.ident != get_ident():
                join(thread, timeout)

"""Starts threads of the runtime, and runs functions on them that continue if the caller is interrupted."""

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


BEGIN_SECONDS = 5.0
"""How long a `BackgroundCall` waits for its thread to begin. A thread that finds no memory for its first call never begins."""


def start(thread: Thread, seconds: float | None = None) -> None:
    """Starts a thread that blocks all asynchronous signals, so that these go to the program's threads. Threads that it starts
    inherit that.

    `Thread.start` is not called on the main thread: a signal handler that raises inside of it can leave a lock locked that
    the new thread needs. The main thread waits for it to begin, `seconds` at most.

    Raises:
        RuntimeError: if the system refuses a further thread, or it does not begin in time. It may still begin then.
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
    try:
        started.result(seconds)
    except TimeoutError as error:
        raise RuntimeError(f"the thread {thread.name!r} did not begin within {seconds:g} s") from error


def start_unnamed(function: Callable[..., object], *args: object) -> None:
    """Starts a thread and does not wait. Signal handlers may call it, even if they interrupted `Thread.start`.

    Raises:
        RuntimeError: if the system refuses a further thread.
    """
    _core.without_signals(_start, function, args)


def start_also_at_exit() -> None:
    """Makes it possible to start threads after the main thread has ended. Call it before work at the exit that needs threads.

    Only CPython 3.12.0 and 3.12.1 need it: they start none then (gh-113964).
    """
    global _start
    if sys.version_info[:3] in ((3, 12, 0), (3, 12, 1)):
        # Threads of the runtime, and those of libraries that exporters use.
        _start = _core.start_thread
        native_threads.set_thread_start(_start, everywhere=not threads_replaced_by())


def call_before_threads_end(function: Callable[[], object]) -> None:
    """Registers a function to call when the main thread has ended, before CPython waits for other threads and pools end. It can
    start threads. The last one registered is called first. If Python has no such hook, it is called at the interpreter's exit."""

    def call() -> None:
        start_also_at_exit()
        function()

    getattr(threading, "_register_atexit", atexit.register)(call)


def frames() -> dict[int, FrameType]:
    """Returns the current frame of each Python thread, by its ident."""
    return sys._current_frames()  # pyright: ignore[reportPrivateUsage]


def join(thread: threading.Thread, seconds: float | None = None) -> None:
    """Waits for the end of a thread of the runtime. Not `thread.join`: gevent replaces that by a function that waits in a hub."""
    Thread.join(thread, seconds)


class BackgroundCall(Generic[T]):
    """Calls a function once, on a new daemon thread. `start` or `result` begins it."""

    def __init__(self, work: Callable[..., T], *args: Any, name: str, elsewhere: bool = False) -> None:
        """Args: `elsewhere`: if no thread can be started, as late in the interpreter's exit, fail instead of calling the function on
        the current thread."""
        self._name = name
        self._elsewhere = elsewhere
        self._done: OneShot[T] = OneShot()
        self._work: Callable[[], T] | None = partial(work, *args)
        self._unclaimed = Lock()
        self._begun = False
        self._thread: Thread | None = None

    def start(self) -> Self:
        """Starts the call. A second time has no effect.

        Raises:
            RuntimeError: if `elsewhere` is set and the system refuses a further thread.
        """
        if not self._begun:
            try:
                thread = Thread(target=lambda: self._run(thread), name=self._name, daemon=True)
                start(thread, None if self._elsewhere else BEGIN_SECONDS)
            except RuntimeError:
                if self._elsewhere:
                    raise
                self._run(None)
            self._begun = True
        return self

    def _run(self, thread: Thread | None) -> None:
        if not self._unclaimed.acquire(blocking=False):
            return  # another thread does it: that of a first start that was interrupted, or one that began late
        self._thread = thread
        work, self._work = self._work, None  # releases its arguments after the call
        assert work is not None
        try:
            result = work()
        except BaseException as error:
            self._done.set_exception(error)
        else:
            self._done.set_result(result)

    @property
    def started(self) -> bool:
        return self._begun

    @property
    def finished(self) -> bool:
        return self._done.done

    @property
    def succeeded(self) -> bool:
        """Whether the call has returned without an exception."""
        return self._done.done and not self._done.failed

    def wait(self, timeout: float | None = None) -> bool:
        """Waits for the end of the call, `timeout` seconds at most, but not for its thread. Returns whether the call has ended."""
        return self._done.wait(timeout)

    def result(self, timeout: float | None = None) -> T:
        """Starts the call if needed, waits for it and its thread, and returns its result.

        Raises:
            TimeoutError: if it has not ended after `timeout` seconds.
            BaseException: the exception of the call.
        """
        self.start()
        try:
            return self._done.result(timeout)
        finally:
            thread = self._thread
            if self._done.done and thread is not None and thread.ident != get_ident():
                join(thread, timeout)

"""Daemon threads with an event loop, and worker threads of these loops."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import importlib
import threading
import time
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

import anyio
import anyio.lowlevel

from stepscope.runtime import _core
from stepscope.runtime.loop_threads.condition import LoopCondition
from stepscope.runtime.loop_threads.lasting_loop import lasting_loop
from stepscope.runtime.threads import background_call
from stepscope.runtime.threads.native_threads import Condition, Lock, SimpleQueue, Thread
from stepscope.runtime.threads.one_shot import OneShot

P = ParamSpec("P")
T = TypeVar("T")

MAX_WORKERS = 8
OUR_MODULES = ("stepscope.runtime.", "asyncio.", "anyio.")
"""Modules whose functions call those of parts on a loop."""
JOIN_S = 1.0
"""Seconds to wait for the end of a thread whose work is done."""

for _module in ("anyio._backends._asyncio", "uvloop"):  # now, so that the first start does not wait for it
    with contextlib.suppress(ImportError):
        importlib.import_module(_module)


_loops: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()
"""The loops of the runtime."""


def own_threads() -> list[threading.Thread]:
    """The current threads of the runtime."""
    return [thread for thread in threading.enumerate() if is_own(thread)]


def is_own(thread: threading.Thread) -> bool:
    """Whether a thread is one of the runtime's."""
    # anyio's worker threads have an attribute for their loop.
    return thread.name.startswith("stepscope") or getattr(thread, "loop", None) in _loops


class LoopThread:
    """Runs an async function on a loop in a daemon thread. `asyncio.to_thread` uses daemon threads there, too. So the interpreter
    can exit even if the function blocks its loop for ever.

    Args:
        name: name of the thread.
        work: the async function.
        failed: called on the thread with the exception of the work, or of making the loop.

    Raises:
        RuntimeError: if the system refuses a further thread.
    """

    def __init__(
        self, name: str, work: Callable[[], Awaitable[None]], failed: Callable[[BaseException], object]
    ) -> None:
        self.ended = False
        self.change = LoopCondition()
        """Notified when the thread has ended."""
        self._work = work
        self._failed = failed
        self._scope: anyio.CancelScope | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._cancelled = False
        self._calls: list[Callable[[], object]] = []
        """Calls that wait until the loop exists."""
        self._lock = Lock()
        self._executor = DaemonExecutor()
        self._context = contextvars.copy_context()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        background_call.start(self._thread)

    def join(self, seconds: float) -> None:
        """Waits for the thread and its workers, `seconds` at most. Call it after `ended` is true."""
        deadline = time.monotonic() + seconds
        for thread in (self._thread, *self._executor.threads):
            background_call.join(thread, max(deadline - time.monotonic(), 0))

    def call(self, what: Callable[[], object]) -> None:
        """Calls a function on the loop as soon as the loop exists. Any thread may call. No effect if the work has ended."""
        with self._lock:
            if self._loop is None:
                self._calls.append(what)
            else:
                with contextlib.suppress(RuntimeError):  # it has ended meanwhile
                    # In the context of the loop: libraries look there for the name of their async library.
                    self._loop.call_soon_threadsafe(what, context=self._context.copy())

    def inside(self) -> str:
        """The function of a part that the thread runs now, with its file and line; empty if there is none."""
        frame = background_call.frames().get(self._thread.ident or 0)
        called = None
        while frame is not None and not str(frame.f_globals.get("__name__")).startswith(OUR_MODULES):
            called, frame = frame, frame.f_back
        return "" if called is None else f"{called.f_code.co_name}() at {called.f_code.co_filename}:{called.f_lineno}"

    def cancel(self) -> None:
        """Cancels the work. Any thread may call. No effect while the work blocks the loop."""
        with self._lock:
            self._cancelled = True
            if self._loop is not None and self._scope is not None:
                with contextlib.suppress(RuntimeError):  # it has ended meanwhile
                    self._loop.call_soon_threadsafe(self._scope.cancel)

    def _run(self) -> None:
        try:
            anyio.run(self._main, backend="asyncio", backend_options={"loop_factory": lasting_loop})
        except BaseException as error:
            self._failed(error)
        finally:
            self.ended = True
            self.change.notify_all()

    async def _main(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(self._executor)
        _loops.add(loop)
        with anyio.CancelScope() as scope:
            with self._lock:
                self._loop, self._scope, self._context = loop, scope, contextvars.copy_context()
                for call in self._calls:
                    loop.call_soon(call)
                if self._cancelled:
                    scope.cancel()
            await self._work()


def run_on_own_loop(work: Callable[[], Awaitable[T]]) -> T:
    """Runs an async function on a new thread with its own loop, and returns its result. Usable where a loop already runs, as in
    callbacks."""
    done: OneShot[T] = OneShot()

    async def main() -> None:
        try:
            done.set_result(await work())
        except BaseException as error:
            done.set_exception(error)
            raise

    thread = LoopThread("stepscope export", main, done.set_exception)
    try:
        return done.result()
    except BaseException:
        thread.cancel()  # without effect unless a signal handler raised here
        raise
    finally:
        done.wait()
        thread.join(JOIN_S)


async def call_in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Calls a function on a worker thread of the running loop. If cancelled, it waits for the end of the call.

    Used instead of `anyio.to_thread.run_sync`, whose threads are greenlets if `threading` was patched.
    """
    result: list[T] = []
    stopped: list[StopIteration] = []

    def run() -> None:
        try:
            result.append(call(*args, **kwargs))
        except StopIteration as error:  # a future of asyncio cannot have it
            stopped.append(error)

    await anyio.lowlevel.checkpoint_if_cancelled()
    with anyio.CancelScope(shield=True):
        await asyncio.to_thread(run)
    if stopped:
        raise RuntimeError("the call raised StopIteration") from stopped[0]
    return result[0]


class NativeFuture(Future[T]):
    """A future with a native lock, even if a greenlet library has replaced the threads of the standard library."""

    def __init__(self) -> None:
        super().__init__()
        self._condition = Condition()


class DaemonExecutor(ThreadPoolExecutor):
    """A pool of daemon threads, for which the interpreter does not wait at its exit. They are started when they are needed.

    A subclass of `ThreadPoolExecutor` because loops accept no other as their default.
    """

    def __init__(self, max_workers: int = MAX_WORKERS) -> None:
        super().__init__(max_workers=1)
        self._limit = max_workers
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._unfinished = 0
        """Submitted calls that have not ended."""
        self.threads: list[Thread] = []
        """All threads that were started."""
        self._guard = Lock()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Runs a call on a thread of the pool. It has the program's signal mask if code of the program submits it.

        Raises:
            RuntimeError: if the pool has no thread and the system refuses one. The call is not run later.
        """
        future: Future[T] = NativeFuture()
        of_program = _core.runs_programs_code()

        def job() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = _core.with_programs_mask(fn, *args, **kwargs) if of_program else fn(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        with self._guard:
            if len(self.threads) < min(self._unfinished + 1, self._limit):
                thread = Thread(target=self._run, name="stepscope worker", daemon=True)
                try:
                    background_call.start(thread)
                except RuntimeError:
                    if not self.threads:
                        raise
                else:
                    self.threads.append(thread)
            self._unfinished += 1
        self._jobs.put(job)
        return future

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            with self._guard:
                self._unfinished -= 1

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the threads after the submitted calls. Never waits."""
        for _ in self.threads:
            self._jobs.put(None)

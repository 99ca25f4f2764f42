"""What happens when the interpreter exits with a profiler open: it is closed, within its deadline.

CPython first calls the functions of `threading._register_atexit`, then waits for threads that are no daemons, then
calls those of `atexit`, when the newer versions start no thread any more. A profiler is closed by the first, while every
pool of threads still works, unless other threads go on: then a thread of ours, for which CPython waits as well, closes it
when they have ended.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread as _workers  # registers its own exit hook: ours must run before it
import logging
import threading
from collections.abc import Callable, Collection

from stepscope.runtime.lifecycle.closing import wait_for_late_closings
from stepscope.runtime.lifecycle.shutdown_hooks import call_after_exit, call_before_close
from stepscope.runtime.recording.recorder import close_recorder
from stepscope.runtime.steps.step_controller import StepController
from stepscope.runtime.threads import signals
from stepscope.runtime.threads.background_call import call_before_threads_end, start, start_also_at_exit
from stepscope.runtime.threads.native_threads import Event, Thread, get_ident

log = logging.getLogger("stepscope")

LOOK = 0.05
"""Seconds between two looks at whether the interpreter still waits."""

_open: Collection[StepController] = ()
"""Profilers that are to be closed."""
_close_all: Callable[[], None] = call_before_close
_last: Thread | None = None
"""Closes when the program's threads have ended."""
_at_once = Event()


def close_at_exit(profilers: Collection[StepController], close_all: Callable[[], None]) -> None:
    """Has profilers closed when the interpreter exits; what does that was registered when this module was imported.

    Args:
        profilers: those that are open then.
        close_all: closes them, within their deadlines.
    """
    global _open, _close_all
    _open, _close_all = profilers, close_all


def _close() -> None:
    """The main thread has done its work."""
    global _last
    start_also_at_exit()
    try:
        others = _at_work()
        if others and not _used_here():
            last = Thread(target=_close_last, name="stepscope exit", daemon=False)
            start(last)
            _last = last
            return
        if others and _open:
            log.warning(
                "the main thread has ended, and the profiler that it stepped is closed: what the threads that go on (%s) record from now "
                "on is in no trace. Join them before the program ends, or step in one of them",
                ", ".join(thread.name for thread in others[:3]),
            )
    except RuntimeError:
        pass  # the system gives no further thread
    except BaseException:
        # Ctrl-C, as a thread may press it that saw the main thread end: the interpreter waits for no thread any more.
        _at_once.set()
        _close_all()
        raise
    _close_all()
    wait_for_late_closings()


def _used_here() -> bool:
    """Whether an open profiler is stepped by this thread, or has a backend that only this one can stop."""
    return any(
        each._stepper == get_ident()  # pyright: ignore[reportPrivateUsage]
        or any(source.open and source.here for source in each._bound())  # pyright: ignore[reportPrivateUsage]
        for each in list(_open)
    )


def _at_work() -> list[threading.Thread]:
    """Threads that the interpreter waits for, but for those of pools: these may be idle, and are ended by the exit."""
    pools = getattr(_workers, "_threads_queues", {})
    without = (threading.main_thread(), threading.current_thread())
    return [thread for thread in threading.enumerate() if not (thread.daemon or thread in without or thread in pools)]


def _close_last() -> None:
    while not _at_once.is_set() and (others := _at_work()):
        others[0].join(LOOK)
    _close_all()
    wait_for_late_closings()


def _give_up_waiting() -> None:
    """Ctrl-C ends the interpreter's wait for threads."""
    _at_once.set()
    if _last is not None:
        _last.join()


def _close_what_is_open() -> None:
    """eventlet replaces what the interpreter calls first at its exit by a function that does not call ours."""
    if _open:
        start_also_at_exit()
        _close_all()


# Exporters write on worker threads, and the executors that run them end before atexit's functions are called. The
# hook that concurrent.futures uses for that runs in reverse order of registration, and ours was registered later.
# A forked child closes what it has opened itself; nothing of its parent's is left in it.
call_before_threads_end(_close)
# Called last.
atexit.register(signals.finish)
atexit.register(call_after_exit)
atexit.register(close_recorder)
atexit.register(_close_what_is_open)
atexit.register(_give_up_waiting)

"""Closes open profilers, within their deadlines, when the interpreter exits.

CPython first calls the functions of `threading._register_atexit`, then waits for non-daemon threads, and then calls those of
`atexit`, when newer versions cannot start threads. Profilers are closed in the first phase, while pools of threads still work.
If other threads of the program still run, a non-daemon thread closes the profilers after these threads have ended.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread as _workers  # registers its own exit hook: ours must run before it
import logging
import threading
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from stepscope.runtime.lifecycle.open_run import wait_for_late_closings
from stepscope.runtime.lifecycle.shutdown_hooks import after_exit, before_close
from stepscope.runtime.recording.recorder import close_recorder
from stepscope.runtime.threads import signals
from stepscope.runtime.threads.background_call import call_before_threads_end, start, start_also_at_exit
from stepscope.runtime.threads.native_threads import Event, Thread, get_ident

if TYPE_CHECKING:
    from stepscope.runtime.lifecycle.lifecycle import Lifecycle

log = logging.getLogger("stepscope")

CHECK_INTERVAL_S = 0.05
"""Seconds between two checks whether the interpreter still waits."""

_open: Collection[Lifecycle] = ()
"""Profilers that are to be closed."""
_close_all: Callable[[], None] = before_close.call
_last: Thread | None = None
"""The thread that closes profilers after the program's threads have ended."""
_at_once = Event()


def close_at_exit(profilers: Collection[Lifecycle], close_all: Callable[[], None]) -> None:
    """Has `close_all` called when the interpreter exits, if any of these profilers is open then."""
    global _open, _close_all
    _open, _close_all = profilers, close_all


def _close() -> None:
    """Called when the main thread has ended its work."""
    global _last
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
        pass  # the system refuses a further thread
    except BaseException:
        # Ctrl-C: the interpreter does not wait for threads any more.
        _at_once.set()
        _close_all()
        raise
    _close_all()
    wait_for_late_closings()


def _used_here() -> bool:
    """Whether this thread steps an open profiler, or must stop a backend of one."""
    return any(each.steps.stepper == get_ident() or each.has_backend_here() for each in list(_open))


def _at_work() -> list[threading.Thread]:
    """Threads that the interpreter waits for, except threads of pools, which the exit ends."""
    pools = getattr(_workers, "_threads_queues", {})
    without = (threading.main_thread(), threading.current_thread())
    return [thread for thread in threading.enumerate() if not (thread.daemon or thread in without or thread in pools)]


def _close_last() -> None:
    while not _at_once.is_set() and (others := _at_work()):
        others[0].join(CHECK_INTERVAL_S)
    _close_all()
    wait_for_late_closings()


def _close_what_is_open() -> None:
    """Ends the wait for threads after Ctrl-C. Closes profilers if `_close` was not called, because eventlet replaced the
    function that calls it."""
    _at_once.set()
    if _last is not None:
        _last.join()
    if _open:
        start_also_at_exit()
        _close_all()


# Exporters write on worker threads, whose executors end before atexit's functions are called. The hook of
# concurrent.futures for that runs in reverse order of registration, and this one is registered later.
# A forked child closes only its own profilers.
call_before_threads_end(_close)
# Called in reverse order.
atexit.register(signals.finish)
atexit.register(after_exit.call)
atexit.register(close_recorder)
atexit.register(_close_what_is_open)

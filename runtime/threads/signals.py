"""Closes profilers when SIGTERM or SIGHUP ends the process.

By default these signals end a Python program at once, without `finally` or `atexit`. While a profiler is open and the program
does not handle them, `_terminate` does: a thread closes the profilers within their deadline, and then the process dies of the
signal, as the sender expects.

The handler runs on the main thread. It starts that thread, stops the backends that are bound to the main thread, and waits. If
it interrupted a call of the runtime, or a block with a lock that closing needs, it returns, and is called again a moment later.
If it is not called, as in native code that does not return, the runtime's loop notices the signal (`core/system/signals.c`) and starts
the thread, which waits a second for the handler. If native code does not release the interpreter's lock, neither is possible:
the process dies at the deadline, and `stepscope recover` finds the events.

Only the main thread can set Python handlers. For profilers that are started on other threads, only the loop notices the
signals, and `signal.getsignal` returns `SIG_DFL`. A program may set its own handlers and later restore ours or `SIG_DFL`, so
the loop checks the handlers from time to time while something is recorded (`look`).
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Collection
from types import FrameType

from stepscope.runtime import _core
from stepscope.runtime.threads import background_call, locks
from stepscope.runtime.threads.native_threads import Lock, on_main_thread
from stepscope.runtime.threads.one_shot import OneShot

log = logging.getLogger("stepscope")

_ENDING = (signal.SIGTERM, signal.SIGHUP)

CHECK_INTERVAL_S = 1.0
"""Seconds between two calls of `look`, and until the loop notices a signal."""
PARK_S = 1.0
"""Seconds that closing waits for the main thread to enter the handler."""
KICK_S = 0.01
"""Seconds until the first signal to the main thread meanwhile; each later one takes twice as long. Few, because a native
handler of the program may write something at each."""
SPARE_S = 20.0
"""Seconds that closing may take beyond the deadline."""

_close_all: Callable[[str], None] | None = None
_stop_here: Callable[[int], bool] | None = None
_seconds = 0.0
"""The deadline of closing; 0: the signals are not watched."""
_lock = locks.reentrant()
"""Guards the settings of `watch`."""
_closing = Lock()
"""Acquired by the first thread that closes for a signal."""
_received = 0
"""That signal."""
_ended: OneShot[None] = OneShot()
"""Set when everything is closed for a signal."""
_parked = False
"""Whether the main thread waits for `_ended`, in the handler."""


def watch(close_all: Callable[[str], None], stop_here: Callable[[int], bool], seconds: float) -> None:
    """Begins to handle SIGTERM and SIGHUP, each unless the program handles or ignores it, as `nohup` does.

    Args:
        close_all: delivers the recorded events. It gets the signal's name, on a separate thread.
        stop_here: stops backends that only the main thread can stop. Inside of a call of the runtime it returns false, and
            calls `handle` when that call ends.
        seconds: the deadline of `close_all`; the longest one counts.
    """
    global _close_all, _stop_here, _seconds
    with _lock:
        _close_all, _stop_here, _seconds = close_all, stop_here, max(_seconds, seconds)
        for number in _ENDING if on_main_thread() else ():
            # `_terminate` stays set, without effect, if another thread called `unwatch`.
            if signal.getsignal(number) in (signal.SIG_DFL, _terminate):
                signal.signal(number, _terminate)
        _watch_again()
    look()


def look() -> None:
    """Watches signals whose handlers the program has removed, and closes for a signal that came without being handled."""
    if not _core.signals_watched():
        _watch_again()
    came = _core.signal_that_came()
    if came and not _closing.locked():
        _look_late(came)


def _watch_again() -> None:
    with _lock:
        for number in _ENDING if _seconds else ():
            if signal.getsignal(number) in (signal.SIG_DFL, _terminate):
                _core.watch_signal(number, _terminate, _seconds)


def _look_late(number: int) -> None:
    if signal.getsignal(number) in (signal.SIG_DFL, _terminate):
        _begin_end(number)
    else:
        _core.forget_signal()  # the program has set a handler since, which is called


def unwatch(profilers: Collection[object] = ()) -> None:
    """Ends the watch, unless profilers are open or a signal came, which ends the process. Handlers of the program stay."""
    global _seconds
    with _lock:
        if profilers or _closing.locked() or _core.signal_that_came():
            return
        _seconds = 0.0
        _core.unwatch_signals()
        for number in _ENDING if on_main_thread() else ():
            if signal.getsignal(number) is _terminate:
                signal.signal(number, signal.SIG_DFL)


def finish() -> None:
    """Called last at the interpreter's exit: if a signal came, waits until everything is closed and dies of the signal."""
    number = _core.signal_that_came()
    if _closing.locked():
        _ended.wait(_seconds + SPARE_S)
        number = _received
    if number:
        _core.die_of_signal(number)


def _terminate(number: int, frame: FrameType | None) -> None:
    """The handler of SIGTERM and SIGHUP."""
    handle(number)


def handle(number: int) -> None:
    """Closes everything on another thread, and waits unless that thread may need the caller. Call it on the main thread."""
    global _parked
    _begin_end(number)
    if _parked or locks.holds_any_lock() or _stop_here is None or not _stop_here(number):
        return
    _parked = True
    _ended.wait(_seconds + SPARE_S)


def _begin_end(number: int) -> None:
    """Starts a thread that closes everything, once. If the system refuses a thread, closes on this one."""
    global _received
    if not _closing.acquire(blocking=False):
        return
    _received = number
    _core.allow_seconds(SPARE_S)
    try:
        background_call.start_unnamed(_end, number)
    except RuntimeError:
        _end(number)


def _park_main_thread(number: int) -> None:
    """Makes the main thread wait in the handler, so that the program records nothing more. Another thread may have received
    the signal, or the main thread right before a system call that sleeps."""
    main, until = threading.main_thread().ident, time.monotonic() + PARK_S
    pause = KICK_S
    while not _parked and signal.getsignal(number) is _terminate and time.monotonic() < until:
        time.sleep(pause)
        pause *= 2
        if main is not None:
            signal.pthread_kill(main, number)


def _end(number: int) -> None:
    """Closes the profilers and kills the process by the signal."""
    global _parked, _ended
    try:
        if not on_main_thread():
            _park_main_thread(number)
        if _close_all is not None:
            _close_all(signal.Signals(number).name)
    except BaseException as error:  # the process must end in any case
        log.error("the profilers could not be closed at a signal", exc_info=error)
    _core.die_of_signal(number)
    # Still alive: the kernel ignores the signal for the first process of a container.
    ended, _ended, _parked = _ended, OneShot[None](), False
    _closing.release()
    ended.set_result(None)
    unwatch()


def _forked() -> None:
    """A forked child has no events of its parent to deliver, so it dies at once."""
    global _close_all, _stop_here, _closing, _ended, _parked
    _close_all = _stop_here = None
    _closing, _ended, _parked = Lock(), OneShot[None](), False
    unwatch()


os.register_at_fork(after_in_child=_forked)

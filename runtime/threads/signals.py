"""Signals that ask the process to stop: what was recorded is delivered first, and then it stops as it would have.

`SIGTERM`, and `SIGHUP` when a terminal is closed, end a Python program at once, without `finally` or `atexit`. While a
profiler is open they have a handler of ours, if nobody else handles them: a thread closes the profilers, within their deadline,
and the process dies of the signal, as the sender expects.

The handler runs on the main thread, where Python runs handlers. It starts that thread, stops the backends that are bound to
the main thread, and waits. Where it has interrupted a call of ours, or a block with a lock that closing needs, it returns, and is called again
a moment later. Where it is not called, as in native code that does not return, the runtime's loop notices the signal
(`core/signals.c`) and starts the thread, which waits a second for the handler. While native code does not let go of the interpreter's lock, neither is
possible: then the process dies when the deadline is over, and what was recorded is for `stepscope recover`.

Only the main thread may set Python's handlers. For profilers that are started elsewhere the loop alone notices the signals:
`signal.getsignal` says `SIG_DFL`. A program may set handlers of its own and put back what it found, ours or `SIG_DFL`: so the
loop looks now and then what the handlers are (`look`).
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

LOOKS = 0.25
"""Seconds between two calls of `look`."""
PARK_S = 1.0
"""How long closing waits for the main thread to be inside of the handler."""
KICK_S = 0.01
"""Between two signals to the main thread meanwhile."""
SPARE_S = 20.0
"""How much longer than the deadline closing may take."""

_close_all: Callable[[str], None] | None = None
_stop_here: Callable[[int], bool] | None = None
_seconds = 0.0
"""For closing; 0: the signals are not watched."""
_lock = locks.reentrant()
"""Guards what is watched."""
_closing = Lock()
"""Taken by the first that closes for a signal."""
_asked = 0
"""That signal."""
_ended: OneShot[None] = OneShot()
"""Set when everything is closed for a signal."""
_parked = False
"""Whether the main thread waits for that, in the handler."""


def watch(close_all: Callable[[str], None], stop_here: Callable[[int], bool], seconds: float) -> None:
    """Handles SIGTERM and SIGHUP from now on, each unless the program does, or has it ignored, as `nohup` has.

    Args:
        close_all: delivers what was recorded. It gets the signal's name, on a thread of its own.
        stop_here: stops what only the main thread can stop. Inside of a call of ours it returns false, and has `handle` called
            when that ends.
        seconds: the deadline of `close_all`; the longest one counts.
    """
    global _close_all, _stop_here, _seconds
    with _lock:
        _close_all, _stop_here, _seconds = close_all, stop_here, max(_seconds, seconds)
        for number in _ENDING if on_main_thread() else ():
            # Ours stays, without effect, where another thread has ended the watch.
            if signal.getsignal(number) in (signal.SIG_DFL, _terminate):
                signal.signal(number, _terminate)
        look()


def look() -> None:
    """Watches the signals again that the program had a handler for until now; closes for one that nobody handles."""
    with _lock:
        for number in _ENDING if _seconds else ():
            if signal.getsignal(number) in (signal.SIG_DFL, _terminate):
                _core.watch_signal(number, _terminate, _seconds)
    came = _core.signal_that_came()
    if came and not _closing.locked():
        _look_late(came)


def _look_late(number: int) -> None:
    if signal.getsignal(number) in (signal.SIG_DFL, _terminate):
        _begin_end(number)
    else:
        _core.forget_signal()  # the program has set a handler since, and that is called


def unwatch(profilers: Collection[object] = ()) -> None:
    """Ends that, unless profilers are open, the program has handlers of its own, or a signal came, which ends the process."""
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
    """At the very end of the interpreter's exit: the process dies of a signal that came, once everything is closed."""
    number = _core.signal_that_came()
    if _closing.locked():
        _ended.wait(_seconds + SPARE_S)
        number = _asked
    if number:
        _core.die_of_signal(number)


def _terminate(number: int, frame: FrameType | None) -> None:
    """The handler of SIGTERM and SIGHUP."""
    handle(number)


def handle(number: int) -> None:
    """Has everything closed, and waits for that, unless closing would wait for the caller; of the main thread."""
    global _parked
    _begin_end(number)
    if _parked or locks.holds_any_lock() or _stop_here is None or not _stop_here(number):
        return
    _parked = True
    _ended.wait(_seconds + SPARE_S)


def _begin_end(number: int) -> None:
    """Has another thread close, unless one does; here, where the system gives no further thread."""
    global _asked
    if not _closing.acquire(blocking=False):
        return
    _asked = number
    _core.allow_seconds(SPARE_S)
    try:
        background_call.start_unnamed(_end, number)
    except RuntimeError:
        _end(number)


def _park_main_thread(number: int) -> None:
    """Has the handler wait on the main thread, so that the program records nothing more. The signal may have come to another
    thread, or right before a system call of the main thread that sleeps."""
    main, until = threading.main_thread().ident, time.monotonic() + PARK_S
    while not _parked and signal.getsignal(number) is _terminate and time.monotonic() < until:
        time.sleep(KICK_S)
        if main is not None:
            signal.pthread_kill(main, number)


def _end(number: int) -> None:
    """Closes the profilers and has the process die."""
    global _parked, _ended
    try:
        if not on_main_thread():
            _park_main_thread(number)
        if _close_all is not None:
            _close_all(signal.Signals(number).name)
    except BaseException as error:  # the process has to end all the same
        log.error("the profilers could not be closed at a signal", exc_info=error)
    _core.die_of_signal(number)
    # The system spares the first process of a container.
    ended, _ended, _parked = _ended, OneShot[None](), False
    _closing.release()
    ended.set_result(None)
    unwatch()


def _forked() -> None:
    """A child has nothing to deliver of its parent's: who terminates it does not wait."""
    global _close_all, _stop_here, _closing, _ended, _parked
    _close_all = _stop_here = None
    _closing, _ended, _parked = Lock(), OneShot[None](), False
    unwatch()


os.register_at_fork(after_in_child=_forked)

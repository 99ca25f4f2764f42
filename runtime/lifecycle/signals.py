"""Signals that ask the process to stop: what was recorded is delivered first, and then it stops as it would have.

`SIGTERM`, and `SIGHUP` when a terminal is closed, end a Python program at once, without `finally` or `atexit`. While a
profiler is open they have a handler of ours, if nobody else handles them: profilers are closed, within their deadline, and
the process dies of the signal, as who sent it expects. `SIGINT` raises `KeyboardInterrupt` anywhere; inside of a change of
ours it waits for its end. Both are done on the main thread, where Python runs handlers. While that does not run Python for
longer than a second, the profilers are closed on another thread, and where none can run Python, the process dies after
their deadline without that (`core/signals.c`): what is left then, as by `SIGKILL`, is for `stepscope recover`.

Only the main thread may set Python's handlers. What is started elsewhere has the signals without them: `signal.getsignal`
says `SIG_DFL`, and another thread closes at once. A program may set handlers of its own and put back what it found, ours
or `SIG_DFL`: so it is looked now and then whose they are (`look`).
"""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable, Collection
from importlib import import_module
from types import FrameType
from typing import Concatenate, ParamSpec, TypeVar

from stepscope.runtime import _core
from stepscope.runtime.threads import locks
from stepscope.runtime.threads.native_threads import on_main_thread

_getsignal: Callable[[int], object] = vars(import_module("_signal"))["getsignal"]
"""`signal.getsignal`, which looks the answer up in an enumeration: that takes as long as a third of a change of action."""

P = ParamSpec("P")
R = TypeVar("R")
Self = TypeVar("Self")

_ENDING = (signal.SIGTERM, signal.SIGHUP)

LOOKS = 0.25
"""Seconds between two calls of `look`."""

_close_all: Callable[[str], None] | None = None
_seconds = 0.0
"""For closing; 0: the signals are not watched."""
_lock = locks.reentrant()
"""Held while it changes whether they are."""


def watch(close_all: Callable[[str], None], seconds: float) -> None:
    """Handles SIGTERM and SIGHUP from now on, each unless the program does, or has it ignored, as `nohup` has.

    Args:
        close_all: delivers what was recorded; it is given the signal's name, mostly on the main thread.
        seconds: its deadline; the longest that was given counts.
    """
    global _close_all, _seconds
    with _lock:
        _close_all, _seconds = close_all, max(_seconds, seconds)
        for number in _ENDING if on_main_thread() else ():
            # Ours is left, without effect, where another thread has given the signal back.
            if signal.getsignal(number) in (signal.SIG_DFL, _terminate):
                signal.signal(number, _terminate)
        look()


def look() -> None:
    """Takes the signals that are watched again, where the program had them and has given them back since."""
    with _lock:
        for number in _ENDING if _seconds else ():
            if signal.getsignal(number) in (signal.SIG_DFL, _terminate):
                _core.watch_signal(number, _terminate, _seconds, _end)


def unwatch(profilers: Collection[object] = ()) -> None:
    """Gives them back, unless profilers are open, the program has taken them since, or one came, which ends the process."""
    global _seconds
    with _lock:
        if profilers or not _core.unwatch_signals():
            return
        _seconds = 0.0
        for number in _ENDING if on_main_thread() else ():
            if signal.getsignal(number) is _terminate:
                signal.signal(number, signal.SIG_DFL)


def uninterrupted(method: Callable[Concatenate[Self, P], R]) -> Callable[Concatenate[Self, P], R]:
    """A method that runs to its end before SIGTERM and Python's own SIGINT take effect, when the main thread runs it.

    Their handlers would find locks held, or leave a change half done.
    """

    @functools.wraps(method)
    def run(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return _held(method, self, *args, **kwargs)

    return run


def _held(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    if not on_main_thread():
        return function(*args, **kwargs)
    interrupts = _getsignal(signal.SIGINT) is signal.default_int_handler
    return _core.hold_signals(interrupts, function, *args, **kwargs)


def held() -> bool:
    """Whether a signal has come that waits for the end of a change."""
    return _core.signal_held()


def _terminate(number: int, frame: FrameType | None) -> None:
    """The handler of SIGTERM and SIGHUP."""
    look()  # the program may have put it back just now, and what watches over the signal does so natively
    # Whom the closing would wait for may wait for a lock of this thread's: it is called again in a moment. A handler of the
    # program's that has called it is not, for it may do more than that: another thread closes then.
    if not _core.put_off_signal(number, locks.held_here(), signal.getsignal(number) is _terminate):
        _end(number)


def _end(number: int) -> None:
    """Closes the profilers and has the process die, unless that is being done."""
    if not _core.begin_ending():
        return
    try:
        if _close_all is not None:
            _held(_close_all, signal.Signals(number).name)
    finally:
        _core.die_of_signal(number)
    unwatch()  # the system spares the first process of a container


def _forked() -> None:
    """A child has nothing to deliver of its parent's: who terminates it does not wait."""
    global _close_all
    _close_all = None
    unwatch()


os.register_at_fork(after_in_child=_forked)

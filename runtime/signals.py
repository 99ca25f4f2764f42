"""Signals that ask the process to stop: what was recorded is delivered first, and then it stops as it would have.

`SIGTERM`, and `SIGHUP` when a terminal is closed, end a Python program at once, without `finally` or `atexit`. While a
profiler is open they have a handler of ours, if nobody else handles them: profilers are closed, within their deadline, and
the process dies of the signal, as who sent it expects. `SIGINT` raises `KeyboardInterrupt` anywhere; inside of a change of
ours it waits for its end. Both are done on the main thread, where Python runs handlers. While that does not run Python for
longer than a second, the profilers are closed on another thread, and where none can run Python, the process dies after
their deadline without that (`core/signals.c`): what is left then, as by `SIGKILL`, is for `stepscope recover`.
"""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Concatenate, ParamSpec, TypeVar

from stepscope.runtime import _core, locks

P = ParamSpec("P")
R = TypeVar("R")
Self = TypeVar("Self")

_ENDING = (signal.SIGTERM, signal.SIGHUP)

_close_all: Callable[[str], None] | None = None
_ends_by = 0
"""The signal for which the profilers are being closed, and of which the process is going to die; 0: none."""


def watch(close_all: Callable[[str], None], seconds: float) -> None:
    """Handles SIGTERM and SIGHUP from now on, each unless the program does, or has it ignored, as `nohup` has. Of the main thread; from another one it changes nothing.

    Args:
        close_all: delivers what was recorded; it is given the signal's name, mostly on the main thread.
        seconds: its deadline; the longest that was given counts.
    """
    global _close_all
    _close_all = close_all
    for number in _ENDING if _on_main_thread() else ():
        # Ours is left, without effect, where another thread has given the signal back.
        if signal.getsignal(number) in (signal.SIG_DFL, _terminate):
            signal.signal(number, _terminate)
            _core.watch_signal(number, seconds, _end)


def unwatch() -> None:
    """Gives them back, unless the program has taken them since, or one came, which ends the process."""
    if not _core.unwatch_signals():
        return
    for number in _ENDING if _on_main_thread() else ():
        if signal.getsignal(number) is _terminate:
            signal.signal(number, signal.SIG_DFL)


def die_if_asked() -> None:
    """To be called when the program has ended by itself and the profilers are closed: if a signal has asked for that meanwhile,
    which another thread is yet to obey, the process dies of it now."""
    if _ends_by:
        _core.die_of_signal(_ends_by)


def uninterrupted(method: Callable[Concatenate[Self, P], R]) -> Callable[Concatenate[Self, P], R]:
    """A method that runs to its end before SIGTERM and Python's own SIGINT take effect, when the main thread runs it.

    Their handlers would find locks held, or leave a change half done.
    """

    @functools.wraps(method)
    def run(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return _held(method, self, *args, **kwargs)

    return run


def _held(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    if not _on_main_thread():
        return function(*args, **kwargs)
    interrupts = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return _core.hold_signals(interrupts, function, *args, **kwargs)


def held() -> bool:
    """Whether a signal has come that waits for the end of a change."""
    return _core.signal_held()


def _on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _terminate(number: int, frame: FrameType | None) -> None:
    """The handler of SIGTERM and SIGHUP."""
    # Whom the closing would wait for may wait for a lock of this thread's: the watcher calls again in a moment.
    if not _core.put_off_signal(number, locks.held_here()):
        _end(number)


def _end(number: int) -> None:
    """Closes the profilers and has the process die, unless that is being done."""
    global _ends_by
    if not _core.begin_ending():
        return
    _ends_by = number
    try:
        if _close_all is not None:
            _held(_close_all, signal.Signals(number).name)
    finally:
        _core.die_of_signal(number)
    unwatch()  # the system spares the first process of a container


def _forked() -> None:
    """A child has nothing to deliver of its parent's: who terminates it does not wait."""
    global _close_all, _ends_by
    _close_all, _ends_by = None, 0
    unwatch()


os.register_at_fork(after_in_child=_forked)

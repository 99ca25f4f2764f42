"""Signals that ask the process to stop: what was recorded is delivered first, and then it stops as it would have.

`SIGTERM`, and `SIGHUP` when a terminal is closed, end a Python program at once, without `finally` or `atexit`. While a
profiler is open they have a handler of ours, if nobody else handles them: profilers are closed, within their deadline, and
the process dies of the signal, as who sent it expects. `SIGINT` raises `KeyboardInterrupt` anywhere; inside of a change of ours it waits for its end. Both are
done on the main thread, where Python runs handlers; while that is in native code for long, a signal waits, and what
`SIGKILL` leaves then is for `stepscope recover`.
"""

from __future__ import annotations

import _thread
import functools
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Concatenate, ParamSpec, TypeVar

from stepscope.runtime import locks

P = ParamSpec("P")
R = TypeVar("R")
Self = TypeVar("Self")

SOON = 0.005
"""Seconds until a signal comes again that came while the main thread held a lock."""
_ENDING = (signal.SIGTERM, signal.SIGHUP)

_close_all: Callable[[str], None] | None = None
_depth = 0
"""Changes of ours that the main thread is inside of."""
_held: list[int] = []
"""Signals that came meanwhile."""
_put_off: set[int] = set()
"""Signals that came while the main thread held a lock."""


def watch(close_all: Callable[[str], None]) -> None:
    """Handles SIGTERM and SIGHUP from now on, each unless the program does, or has it ignored, as `nohup` has. Of the main thread; from another one it changes nothing.

    Args:
        close_all: delivers what was recorded, within its deadline; it is given the signal's name.
    """
    global _close_all
    _close_all = close_all
    for number in _ENDING if _on_main_thread() else ():
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _terminate)


def unwatch() -> None:
    """Gives them back, unless the program has taken them since. Of the main thread.

    From another thread the handler stays: without anything to deliver it lets the signal do what it does.
    """
    for number in _ENDING if _on_main_thread() else ():
        if signal.getsignal(number) is _terminate:
            signal.signal(number, signal.SIG_DFL)


def uninterrupted(method: Callable[Concatenate[Self, P], R]) -> Callable[Concatenate[Self, P], R]:
    """A method that runs to its end before SIGTERM and Python's own SIGINT take effect, when the main thread runs it.

    Their handlers would find locks held, or leave a change half done.
    """

    @functools.wraps(method)
    def run(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        global _depth
        if not _on_main_thread():
            return method(self, *args, **kwargs)
        holding = _depth == 0 and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        _depth += 1
        try:
            if holding:
                signal.signal(signal.SIGINT, _hold)
            return method(self, *args, **kwargs)
        finally:
            _depth -= 1
            if holding and signal.getsignal(signal.SIGINT) is _hold:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            if not _depth and _held:
                signal.raise_signal(_held.pop())

    return run


def held() -> bool:
    """Whether a signal has come that waits for the end of a change."""
    return bool(_held)


def _on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _hold(number: int, frame: FrameType | None) -> None:
    _held[:] = [number]


def _terminate(number: int, frame: FrameType | None) -> None:
    """The handler of SIGTERM and SIGHUP."""
    global _depth
    if not _depth and locks.held_here():
        # Whom this would wait for may wait for that.
        if number not in _put_off:
            _put_off.add(number)
            _thread.start_new_thread(_again, (number,))
        return
    _put_off.discard(number)
    if _depth:
        # Inside of a change, or of the closing that an earlier one began.
        _hold(number, frame)
        return
    _depth += 1
    try:
        if _close_all is not None:
            _close_all(signal.Signals(number).name)
    finally:
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)


def _again(number: int) -> None:
    """Has the main thread called once more in a moment, until its handler goes on."""
    while number in _put_off:
        time.sleep(SOON)
        signal.pthread_kill(threading.main_thread().ident or 0, number)


def _forked() -> None:
    """A child has nothing to deliver of its parent's: who terminates it does not wait."""
    global _close_all, _depth
    _close_all, _depth = None, 0
    _held.clear()
    _put_off.clear()
    unwatch()


os.register_at_fork(after_in_child=_forked)

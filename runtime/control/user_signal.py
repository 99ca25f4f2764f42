"""SIGUSR2, for programs that let it arm windows."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

log = logging.getLogger("stepscope")

_calls: list[Callable[[], object]] = []
_owner = 0


def watch(call: Callable[[], object]) -> str:
    """Has SIGUSR2 call this, on the main thread between two instructions of Python: it must neither wait nor lock.

    Returns:
        Why not, if it cannot be: a signal's handler is set on the main thread only, and the program's own is left alone.
    """
    global _owner
    if threading.current_thread() is not threading.main_thread():
        return "SIGUSR2 arms nothing: the profiler was not started on the main thread"
    if signal.getsignal(signal.SIGUSR2) not in (signal.SIG_DFL, signal.SIG_IGN, _arm):
        return "SIGUSR2 arms nothing: the program has a handler of its own"
    _owner = os.getpid()
    _calls.append(call)
    signal.signal(signal.SIGUSR2, _arm)
    return ""


def unwatch(call: Callable[[], object]) -> None:
    """Ends that. The last one has the signal ignored from then on where the main thread can say so: sent too late, it
    would end the process."""
    if call not in _calls:
        return
    _calls.remove(call)
    main = threading.current_thread() is threading.main_thread()
    if not _calls and main and signal.getsignal(signal.SIGUSR2) is _arm:
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)


def _arm(number: int, frame: FrameType | None) -> None:
    if os.getpid() != _owner:
        return
    for call in _calls:
        call()


def _forget() -> None:
    """A forked child arms nothing of its parent's; the signal does not end it either."""
    _calls.clear()


os.register_at_fork(after_in_child=_forget)

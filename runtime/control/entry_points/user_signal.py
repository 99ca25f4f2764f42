"""SIGUSR2, for programs that let it arm windows."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

from stepscope.runtime.threads.native_threads import on_main_thread

log = logging.getLogger("stepscope")

_calls: list[Callable[[], object]] = []
_owner = 0
_before: Any = signal.SIG_DFL
"""What the program did with the signal."""


def watch(call: Callable[[], object]) -> str:
    """Has SIGUSR2 call this, on the main thread between two instructions of Python: it must neither wait nor lock.

    Returns:
        Why not, if it cannot be: a signal's handler is set on the main thread only, and the program's own is left alone.
    """
    global _owner, _before
    if not on_main_thread():
        return "SIGUSR2 arms nothing: the profiler was not started on the main thread"
    now = signal.getsignal(signal.SIGUSR2)
    if now not in (signal.SIG_DFL, signal.SIG_IGN, _arm):
        return "SIGUSR2 arms nothing: the program has a handler of its own"
    if now is not _arm:
        _before = now
    _owner = os.getpid()
    _calls.append(call)
    signal.signal(signal.SIGUSR2, _arm)
    return ""


def unwatch(call: Callable[[], object]) -> None:
    """Ends that. After the last one the signal does nothing here: one that comes late, or between two stages of a training, does
    not end it. Programs that are started have the default again, as a handler is not theirs; a signal that was ignored before
    is ignored again. Idempotent."""
    if call in _calls:
        _calls.remove(call)
    main = on_main_thread()
    ignored = _before is signal.SIG_IGN
    if not _calls and ignored and main and signal.getsignal(signal.SIGUSR2) is _arm:
        signal.signal(signal.SIGUSR2, _before)


def _arm(number: int, frame: FrameType | None) -> None:
    if os.getpid() != _owner:
        return
    for call in _calls:
        call()


def _forget() -> None:
    """A forked child arms nothing of its parent's; the signal does not end it either."""
    _calls.clear()


os.register_at_fork(after_in_child=_forget)

"""SIGUSR2 as a request for a window (`Control.signal`)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

from stepscope.runtime.threads.native_threads import on_main_thread

_calls: list[Callable[[], object]] = []
_owner = 0
_before: Any = signal.SIG_DFL
"""The program's handler of the signal."""


def watch(call: Callable[[], object]) -> str:
    """Registers a function for SIGUSR2. It is called on the main thread, at any point of the program: it must neither wait nor
    acquire locks. Returns the reason if it cannot be registered, else an empty text."""
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
    """Removes a function. Idempotent.

    After the last one, the handler stays and does nothing, so that a late signal does not end the process. If the signal was
    ignored before, it is ignored again.
    """
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


os.register_at_fork(after_in_child=_calls.clear)  # the signal does not end a forked child either

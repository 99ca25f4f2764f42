"""Reentrant locks that are free in a forked child, even if a thread of the parent held them.

A thread that holds one must neither call code of the program nor wait for other threads. The locks are reentrant because a
signal handler may call the runtime while its thread holds one.
"""

from __future__ import annotations

import logging
import operator
import os
import threading
import weakref
from collections.abc import Callable
from typing import TypeVar

from stepscope.runtime.threads.native_threads import RLock, any_is_mine, is_mine, set_free

T = TypeVar("T")

_log = logging.getLogger("stepscope")
_ours: list[weakref.ref[RLock]] = []


def reentrant() -> RLock:
    """Returns a new lock. Acquire it by `with` only: then no signal handler runs between acquiring it and the block."""
    lock = RLock()
    _ours.append(weakref.ref(lock, _ours.remove))
    return lock


def without(lock: RLock, call: Callable[[], T]) -> T:
    """Calls a function while a lock that the caller holds is released. The state that it guards may change meanwhile."""
    try:
        lock.release()
        return call()
    finally:
        lock.acquire()


def holds_any_lock() -> bool:
    """Whether the calling thread holds one of these locks, or a lock of Python's that starting a thread or logging needs. A
    signal handler must then not wait for threads that may need the lock."""
    handlers = [*_log.handlers, *_log.root.handlers, logging.lastResort]
    pythons = [getattr(threading, "_active_limbo_lock", None), getattr(logging, "_lock", None)]
    pythons += [handler.lock for handler in handlers if handler is not None]
    return any(map(is_mine, pythons)) or any_is_mine(filter(None, map(operator.call, _ours)))


def _renew() -> None:
    for reference in _ours:
        lock = reference()
        if lock is not None and not is_mine(lock):
            set_free(lock)


os.register_at_fork(after_in_child=_renew)

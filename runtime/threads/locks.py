"""Locks that are free in a forked child, whatever threads of the parent had them.

A thread that has one neither calls the program nor waits for other threads. They are reentrant: a signal handler may make
calls of its own while its thread has one.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable
from typing import TypeVar

from stepscope.runtime.threads.native_threads import RLock, is_mine, set_free

T = TypeVar("T")

_log = logging.getLogger("stepscope")
_ours: list[weakref.ref[RLock]] = []


def reentrant() -> RLock:
    """A new lock. It is taken by `with`: no signal handler comes between taking it and the block."""
    lock = RLock()
    _ours.append(weakref.ref(lock, _ours.remove))
    return lock


def without(lock: RLock, call: Callable[[], T]) -> T:
    """Makes a call while a lock that the caller has is free; what it guards may be another then."""
    try:
        lock.release()
        return call()
    finally:
        lock.acquire()


def holds_any_lock() -> bool:
    """Whether the calling thread has one, or one of Python's own that everybody takes who starts a thread or writes to the log: it
    runs a signal handler then, and must not wait for threads that need the lock."""
    handlers = [*_log.handlers, *_log.root.handlers, logging.lastResort]
    pythons = [getattr(threading, "_active_limbo_lock", None), getattr(logging, "_lock", None)]
    pythons += [handler.lock for handler in handlers if handler is not None]
    return any(map(is_mine, [*pythons, *(reference() for reference in _ours)]))


def _renew() -> None:
    for reference in _ours:
        lock = reference()
        if lock is not None and not is_mine(lock):
            set_free(lock)


os.register_at_fork(after_in_child=_renew)

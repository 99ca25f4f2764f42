"""Locks that threads of ours need while profilers are closed, and that threads of the program hold for moments.

Python runs signal handlers between any two instructions of the main thread, also while that holds a lock. A handler that
waits for the closing then waits for threads that wait for the lock. So it asks here first, and comes back a moment later:
what holds such a lock neither calls the program nor waits. That costs nothing where locks are taken.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import TypeVar

from stepscope.runtime.threads.native_threads import RLock, is_mine, set_free

T = TypeVar("T")

_log = logging.getLogger("stepscope")
_ours: list[weakref.ref[RLock]] = []


def reentrant() -> RLock:
    """A lock that `held_here` knows of. Reentrant: a handler may make calls of its own while its thread holds it.

    Who holds it neither calls what belongs to the program nor waits for anything. It is held by `with`, which no signal
    handler comes into between taking and giving back. In a forked child it is free.
    """
    lock = RLock()
    _ours.append(weakref.ref(lock, _ours.remove))
    return lock


def if_free(lock: RLock, call: Callable[[], T]) -> T | None:
    """Makes a call with the lock held, unless another thread holds it: then it does not wait. Not where the caller holds it."""
    try:
        mine = lock.acquire(blocking=False)
    except BaseException:  # of a signal handler, which may have come right after it was taken
        if is_mine(lock):
            lock.release()
        raise
    if not mine:
        return None
    try:
        return call()
    finally:
        lock.release()


def without(lock: RLock, call: Callable[[], T]) -> T:
    """Makes a call while a lock that the caller holds is given back; what it guards may be another then."""
    try:
        lock.release()
        return call()
    finally:
        lock.acquire()


def held_here() -> bool:
    """Whether the calling thread holds a lock that closing profilers may need: one of ours, or one of Python's own that
    everybody takes who starts a thread or writes to the log."""
    return any(is_mine(lock) for lock in _known())


def _known() -> Iterator[object]:
    for reference in _ours:
        yield reference()
    yield getattr(threading, "_active_limbo_lock", None)
    yield getattr(logging, "_lock", None)
    yield getattr(logging.lastResort, "lock", None)
    logger: logging.Logger | None = _log
    while logger is not None:
        yield from [handler.lock for handler in logger.handlers]
        logger = logger.parent if logger.propagate else None


def _renew() -> None:
    """In a forked child: those that threads of the parent held at that moment are free."""
    for reference in _ours:
        lock = reference()
        if lock is not None and not is_mine(lock):
            set_free(lock)


os.register_at_fork(after_in_child=_renew)

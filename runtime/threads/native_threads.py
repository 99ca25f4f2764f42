"""Threads, locks, events and queues of the standard library as they were when stepscope was imported.

gevent and eventlet replace them by greenlets (monkey patching), also while a profiler is open. The runtime's threads stay
native, and waiting for them must be native, too: the hub of a greenlet library ends a wait for which it knows no greenlet.
Code of the runtime that starts a thread, or waits for one, must import these names from here, not from `threading`.
"""

from __future__ import annotations

import _thread
import operator
import os
import sys
import threading
from collections.abc import Iterable
from types import FunctionType
from typing import TYPE_CHECKING, Any

__all__ = [
    "Condition",
    "Event",
    "Lock",
    "RLock",
    "SimpleQueue",
    "Thread",
    "get_ident",
    "on_main_thread",
    "start_new_thread",
]

start_new_thread = _thread.start_new_thread
get_ident = _thread.get_ident

if TYPE_CHECKING:
    from queue import SimpleQueue
    from threading import Condition, Event, Lock, RLock, Thread
else:
    try:
        from _queue import SimpleQueue  # gevent patches that of `queue`, also in programs whose threads it leaves alone
    except ImportError:
        from queue import SimpleQueue
    Lock = _thread.allocate_lock
    # The private ones, which `threading.Condition` and the forks of Python's own library use, differ with the interpreter.
    _RLOCK = ("__enter__", "__exit__", *(name for name in dir(_thread.RLock) if not name.startswith("__")))

    def RLock():
        """Returns a lock that is no instance of `_thread.RLock`, as eventlet replaces those.

        Each lock has its own class, because `with` looks up methods of the class. So they are the methods in C.
        """
        lock = _thread.RLock()

        def enter(self):
            (acquired,) = map(lock.acquire, (True,))
            return acquired

        members = {name: getattr(lock, name) for name in _RLOCK}
        if sys.version_info[:2] == (3, 14):
            # That version may run a signal handler between `__enter__` in C and the block, which leaves the lock locked if the
            # handler raises. Between unpacking, which calls `acquire` here, and the block it runs none.
            members["__enter__"] = enter
        return type("RLock", (), {**members, "__slots__": ("__weakref__",)})()

    def _copies():
        """Returns subclasses whose methods have their own globals: a copy of those of `threading` as they are now.

        The lists of threads in these globals are the same objects, so `threading.enumerate()` includes these threads.
        """
        # In no module's variables: eventlet replaces the locks that it finds there.
        originals = {**vars(threading), "RLock": RLock}
        for name in ("Condition", "Event", "Thread"):
            kind = originals[name]
            members = {}
            for member_name, member in vars(kind).items():
                if isinstance(member, FunctionType):
                    function = FunctionType(
                        member.__code__, originals, member_name, member.__defaults__, member.__closure__
                    )
                    function.__kwdefaults__, function.__doc__ = member.__kwdefaults__, member.__doc__
                    members[member_name] = function
            originals[name] = type(name, (kind,), members)
        thread_start = originals["Thread"].start

        def start(self):
            for hook in ("_trace_hook", "_profile_hook"):  # those of debuggers and of coverage
                originals[hook] = getattr(threading, hook, None)
            thread_start(self)

        originals["Thread"].start = start
        originals["Thread"].originals = originals
        return originals["Condition"], originals["Event"], originals["Thread"]

    Condition, Event, Thread = _copies()


_main = threading.main_thread().ident


def on_main_thread() -> bool:
    """Whether the caller runs on the main thread, in any greenlet."""
    return get_ident() == _main


def _forked() -> None:
    global _main
    _main = get_ident()


os.register_at_fork(after_in_child=_forked)


def set_thread_start(function: Any, everywhere: bool) -> None:
    """Replaces the function by which `Thread.start` starts threads; with `everywhere` also for `threading.Thread`."""
    names: tuple[Any, ...] = (vars(Thread)["originals"], *([vars(threading)] if everywhere else ()))
    for each in names:
        each["_start_new_thread"] = function


def is_mine(lock: object) -> bool:
    """Whether the calling thread holds a reentrant lock; False if the lock has no `_is_owned`."""
    is_owned = getattr(lock, "_is_owned", None)
    return is_owned is not None and bool(is_owned())


_is_owned = operator.methodcaller("_is_owned")


def any_is_mine(locks: Iterable[RLock]) -> bool:
    """Whether the calling thread holds one of these locks, of which there may be thousands."""
    return hasattr(_thread.RLock, "_is_owned") and any(map(_is_owned, locks))


def set_free(lock: object) -> None:
    """Frees a lock in a forked child, where the thread that held it does not exist."""
    renew = getattr(lock, "_at_fork_reinit", None)  # as `threading` does
    if renew is not None:
        renew()

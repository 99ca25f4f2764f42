"""Hooks that front doors register: called before all profilers of a process are closed, or after that, at the exit or by a
signal."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from functools import partial

log = logging.getLogger("stepscope")

_functions: list[Callable[[], object]] = []
_last: list[Callable[[str], object]] = []
_exit: list[Callable[[], object]] = []


def before_close(function: Callable[[], object]) -> None:
    """Registers a function to call before profilers are closed because the process ends. The last one is called first.

    It may be called more than once, and in a signal handler, and must not wait for long. Exceptions are logged.
    """
    _functions.append(function)


def call_before_close() -> None:
    """Calls the functions of `before_close`."""
    _call(reversed(_functions), "comes before")


def after_signal(function: Callable[[str], object]) -> None:
    """Registers a function to call, with its name, after a signal had the profilers closed, before it ends the process.

    It is called in a handler or on another thread, and must not wait for locks, such as that of `sys.stderr`, as the program
    may hold them. Exceptions are logged. It is not called in forked children.
    """
    _last.append(function)


def call_after_signal(name: str) -> None:
    """Calls the functions of `after_signal`."""
    _call((partial(function, name) for function in _last), "follows")


def after_exit(function: Callable[[], object]) -> None:
    """Registers a function to call at the interpreter's exit, after the profilers are closed and before daemon threads stop. It
    must not wait for long. Exceptions are logged. It is called in forked children, too."""
    _exit.append(function)


def call_after_exit() -> None:
    """Calls the functions of `after_exit`."""
    _call(_exit, "follows")


def _call(functions: Iterable[Callable[[], object]], when: str) -> None:
    for function in functions:
        try:
            function()
        except Exception as error:  # the others must be called, and the process must end
            log.error("what %s the end of profilers failed", when, exc_info=error)


os.register_at_fork(after_in_child=_last.clear)

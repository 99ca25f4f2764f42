"""What is done when the profilers of a process are closed together: before that, at its exit and by a signal that ends it;
and after that, at its exit or by a signal."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

log = logging.getLogger("stepscope")

_functions: list[Callable[[], object]] = []
_last: list[Callable[[str], object]] = []
_exit: list[Callable[[], object]] = []


def before_close(function: Callable[[], object]) -> None:
    """Has a function called, the last one first, where profilers are closed because the process ends; it may be called
    more than once, and by the handler of a signal. For front doors that have more to do than to close. What it raises is
    logged.

    Args:
        function: what is to be done; it must not wait for long.
    """
    _functions.append(function)


def call_before_close() -> None:
    """Calls the functions."""
    for function in reversed(_functions):
        try:
            function()
        except Exception as error:  # the others, and the profilers, have to be closed all the same
            log.error("what comes before the end of profilers failed", exc_info=error)


def after_signal(function: Callable[[str], object]) -> None:
    """Has a function called when a signal has had the profilers closed and ends the process: nothing of the interpreter's
    exit is called then. It is called with the signal's name, inside of a handler or on another thread, whatever the
    program holds at the time: it must wait for no lock, such as that of `sys.stderr`. What it raises is logged. It is not
    called in forked children, whatever they trace.

    Args:
        function: what is to be done; it must not wait for long.
    """
    _last.append(function)


def call_after_signal(name: str) -> None:
    """Calls these functions."""
    for function in _last:
        try:
            function(name)
        except Exception as error:  # the process has to end all the same
            log.error("what follows the end of profilers failed", exc_info=error)


def after_exit(function: Callable[[], object]) -> None:
    """Has a function called when the interpreter exits, after the profilers are closed and before the interpreter stops the
    threads that still run. What it raises is logged. In forked children it is called as well.

    Args:
        function: what is to be done; it must not wait for long.
    """
    _exit.append(function)


def call_after_exit() -> None:
    """Calls these functions."""
    for function in _exit:
        try:
            function()
        except Exception as error:  # the other functions have work of their own
            log.error("what follows the end of profilers failed", exc_info=error)


os.register_at_fork(after_in_child=_last.clear)

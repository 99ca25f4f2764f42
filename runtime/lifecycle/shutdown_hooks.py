"""Hooks of drop-in replacements: called before all profilers of a process are closed, or after that, at the exit or by a
signal."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

log = logging.getLogger("stepscope")


class Hooks:
    """Functions to call at one point. Exceptions are logged, as the others must be called, and the process must end."""

    def __init__(self, when: str) -> None:
        """Args: when they are called, for the log."""
        self._when = when
        self._functions: list[Callable[..., object]] = []
        self.clear = self._functions.clear

    def add(self, function: Callable[..., object]) -> None:
        """Registers a function, which must not wait for long. The last one is called first."""
        self._functions.append(function)

    def call(self, *arguments: object) -> None:
        """Calls the functions."""
        for function in reversed(self._functions):
            try:
                function(*arguments)
            except Exception as error:
                log.error("what %s the end of profilers failed", self._when, exc_info=error)


before_close = Hooks("comes before")
"""Before profilers are closed because the process ends: perhaps more than once, and in a signal handler."""
after_signal = Hooks("follows")
"""With the name of a signal, after that had the profilers closed, before it ends the process, which calls no functions of `atexit`
then: in a handler or on another thread. They must not wait for locks, such as that of `sys.stderr`, as the program may hold them.
They are not called in forked children."""
after_exit = Hooks("follows")
"""At the interpreter's exit, after the profilers are closed and before daemon threads stop; in forked children, too."""

os.register_at_fork(after_in_child=after_signal.clear)

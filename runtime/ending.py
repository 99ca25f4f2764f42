"""What is done before the profilers of a process are closed together: at its exit, and by a signal that ends it."""

from __future__ import annotations

import logging
from collections.abc import Callable

log = logging.getLogger("stepscope")

_functions: list[Callable[[], object]] = []


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

"""Runs functions when the interpreter exits, while threads can still start."""

from __future__ import annotations

from collections.abc import Callable

import stepscope.runtime.lifecycle.interpreter_exit as _exit
from stepscope.runtime.threads.background_call import call_before_threads_end

assert _exit is not None
# The hooks run in reverse order of registration: those of the runtime, which close profilers, come after ours.


def before_exit(function: Callable[[], object]) -> None:
    """Has a function called, the last one first, before profilers are closed and before Python refuses new threads."""
    call_before_threads_end(function)

"""What is done when the interpreter exits, while threads can still be started."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable

import stepscope.runtime.exit as _exit
from stepscope.runtime.threads import start_also_at_exit

assert _exit is not None
# The hooks run in reverse order of registration: those of the runtime, which close profilers, come after ours.


def before_exit(function: Callable[[], object]) -> None:
    """Has a function called, the last one first, before profilers are closed and before Python refuses new threads."""

    def call() -> None:
        start_also_at_exit()
        function()

    register: Callable[[Callable[[], object]], object] = getattr(threading, "_register_atexit", atexit.register)
    register(call)

"""What happens when the interpreter exits with a profiler open: it is closed, within its deadline."""

from __future__ import annotations

import atexit
import concurrent.futures.thread as _workers  # registers its own exit hook: ours must run before it
import os
import threading

from stepscope.runtime.profiler import close_all
from stepscope.runtime.recorder import close_recorder

assert _workers is not None
_owner = os.getpid()


def _at_exit() -> None:
    """A forked child has nothing of its parent's to close."""
    if os.getpid() == _owner:
        close_all()


def _last() -> None:
    if os.getpid() == _owner:
        close_recorder()


# Exporters write on worker threads, and the executors that run them end before atexit's functions are called. The
# hook that concurrent.futures uses for that runs in reverse order of registration, and ours was registered later.
getattr(threading, "_register_atexit", atexit.register)(_at_exit)
atexit.register(_last)

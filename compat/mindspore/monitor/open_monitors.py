"""Monitors that are open: their windows end when the interpreter exits, and when a signal ends the process."""

from __future__ import annotations

import os
import weakref
from typing import Final, Protocol

from stepscope.compat.mindspore.analysis.background import analysis_thread
from stepscope.compat.mindspore.at_exit import before_exit
from stepscope.runtime.lifecycle.shutdown_hooks import before_close

TERMINATED: Final = 10.0
"""Seconds that a process that is terminated waits for the products of its windows, whose raw data are kept in any case."""


class Monitor(Protocol):
    """What is done with them."""

    def close(self) -> None: ...

    def terminate(self) -> None: ...


open_monitors: Final[weakref.WeakSet[Monitor]] = weakref.WeakSet()
"""Of this process."""


def _close_all() -> None:
    for monitor in list(open_monitors):
        monitor.close()


def _terminated() -> None:
    """Windows end in order, and products are made as far as there is time for that."""
    for monitor in list(open_monitors):
        monitor.terminate()
    analysis_thread.wait(TERMINATED)


before_exit(_close_all)
before_close(_terminated)
os.register_at_fork(after_in_child=open_monitors.clear)

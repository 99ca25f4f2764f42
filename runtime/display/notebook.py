"""A line in a notebook's cell that says how far a run is."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from stepscope.runtime.accounting.statistics import ProfilerStatistics
from stepscope.runtime.display.text_table import human_count, human_number, human_time
from stepscope.runtime.events import clock
from stepscope.runtime.threads.background_call import join, start
from stepscope.runtime.threads.native_threads import Event, Thread

log = logging.getLogger("stepscope")

INTERVAL_S = 0.5
"""Between two updates."""
LATEST_S = 1.0
"""That the end of the block waits for the last one, at most."""


@contextmanager
def progress(ask: Callable[[], ProfilerStatistics]) -> Generator[None]:
    """Shows it as long as the block lasts, where a kernel of IPython runs; elsewhere nothing. A thread of its own does it.

    A display that fails is logged, and the block goes on.
    """
    over = Event()
    thread = Thread(target=_Shown(ask, over).run, name="stepscope progress", daemon=True) if _in_kernel() else None
    try:
        if thread is not None:
            start(thread)
    except RuntimeError as error:
        log.warning("the progress of the run is not shown: %s", error)
        thread = None
    try:
        yield
    finally:
        over.set()
        if thread is not None:
            join(thread, LATEST_S)


class _Shown:
    """A display and what it showed last."""

    def __init__(self, ask: Callable[[], ProfilerStatistics], over: Event) -> None:
        self._ask, self._over = ask, over

    def run(self) -> None:
        """Updates it until all is over, and then once more."""
        try:
            began = at = clock.now()
            first = last = self._ask().steps
            display = import_module("IPython.display").display
            handle: Any = display(_bundle(self._ask(), first, began, began), raw=True, display_id=True)
            while not self._over.wait(INTERVAL_S):
                now = self._ask()
                handle.update(_bundle(now, last, at, began), raw=True)
                last, at = now.steps, clock.now()
            handle.update(_bundle(self._ask(), first, began, began), raw=True)
        except Exception:
            log.warning("the progress of the run is not shown any more", exc_info=True)


def _in_kernel() -> bool:
    """Whether a kernel runs this; IPython in a terminal has no display that can be updated."""
    found: Any = sys.modules.get("IPython")
    shell = found.get_ipython() if found is not None else None
    return getattr(shell, "kernel", None) is not None


def _bundle(now: ProfilerStatistics, last: int, at: int, began: int) -> dict[str, str]:
    seconds = (clock.now() - at) / 1e9
    rate = f", {human_number((now.steps - last) / seconds, 3)} steps/s" if now.steps > last and seconds > 0 else ""
    windows = now.pipeline.windows if now.pipeline is not None else None
    lost = sum(sum(reasons.values()) for reasons in windows.dropped.values()) if windows is not None else 0
    dropped = f", {human_count(lost, 'event')} dropped" if lost else ""
    passed = human_time(clock.now() - began)
    text = f"stepscope: {now.state}, {human_count(now.steps, 'step')}{rate}, {passed}{dropped}"
    return {
        "text/plain": text,
        "text/html": f'<span style="font-variant-numeric:tabular-nums">{text}</span>',
    }

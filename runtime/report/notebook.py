"""A line in a notebook's cell with the progress of a run."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from stepscope.runtime.display.text_table import human_count, human_number, human_time
from stepscope.runtime.events import clock
from stepscope.runtime.report.profiler_statistics import ProfilerStatistics
from stepscope.runtime.threads.background_call import join, start
from stepscope.runtime.threads.native_threads import Event, Thread

log = logging.getLogger("stepscope")

INTERVAL_S = 0.5
"""Between two updates."""
JOIN_S = 1.0
"""Seconds that the end of the block waits for the last update, at most."""


@contextmanager
def progress(read: Callable[[], ProfilerStatistics]) -> Generator[None]:
    """Shows the progress during the block, on a separate thread. Without a kernel of IPython it shows nothing.

    If the display fails, it is logged, and the block continues.
    """
    ended = Event()
    thread = Thread(target=_show, args=(read, ended), name="stepscope progress", daemon=True) if _in_kernel() else None
    try:
        if thread is not None:
            start(thread)
    except RuntimeError as error:
        log.warning("the progress of the run is not shown: %s", error)
        thread = None
    try:
        yield
    finally:
        ended.set()
        if thread is not None:
            join(thread, JOIN_S)


def _show(read: Callable[[], ProfilerStatistics], ended: Event) -> None:
    """Updates an output in the cell until the block has ended, and once more after that."""
    try:
        began = at = clock.now()
        first = last = read().steps
        display = import_module("IPython.display").display
        handle: Any = display(_bundle(read(), first, began, began), raw=True, display_id=True)
        while not ended.wait(INTERVAL_S):
            now = read()
            handle.update(_bundle(now, last, at, began), raw=True)
            last, at = now.steps, clock.now()
        handle.update(_bundle(read(), first, began, began), raw=True)
    except Exception:
        log.warning("the progress of the run is not shown any more", exc_info=True)


def _in_kernel() -> bool:
    """Whether this runs in a kernel. IPython in a terminal has no output that can be updated."""
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

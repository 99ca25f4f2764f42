"""A line in a notebook's cell that says how far a run is."""

from __future__ import annotations

import html
import logging
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from stepscope.runtime import clock
from stepscope.runtime.native_threads import Event, Thread
from stepscope.runtime.statistics import ProfilerStatistics
from stepscope.runtime.table import human_count, human_number, human_time
from stepscope.runtime.threads import join, start

log = logging.getLogger("stepscope")

INTERVAL_S = 0.5
"""Between two updates."""


@contextmanager
def progress(ask: Callable[[], ProfilerStatistics]) -> Generator[None]:
    """Shows it as long as the block lasts, where a kernel of IPython runs; elsewhere nothing. A thread of its own does it."""
    if not _in_kernel():
        yield
        return
    began, first, over = clock.now(), ask().steps, Event()
    handle: Any = import_module("IPython.display").display(
        _bundle(ask(), first, began, began), raw=True, display_id=True
    )

    def update() -> None:
        last, at = first, began
        try:
            while not over.wait(INTERVAL_S):
                statistics = ask()
                handle.update(_bundle(statistics, last, at, began), raw=True)
                last, at = statistics.steps, clock.now()
        except Exception:
            log.warning("the progress of the run is not shown any more", exc_info=True)

    thread = Thread(target=update, name="stepscope progress", daemon=True)
    start(thread)
    try:
        yield
    finally:
        over.set()
        join(thread, INTERVAL_S)
        handle.update(_bundle(ask(), first, began, began), raw=True)


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
        "text/html": f'<span style="font-variant-numeric:tabular-nums">{html.escape(text)}</span>',
    }

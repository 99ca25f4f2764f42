"""A profiler that records what it is asked for, its loop, and what came of it."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path
from typing import Any

import stepscope
from stepscope import Options, Profiler, Window
from stepscope.runtime.schedule.schedule import never
from stepscope.runtime.windows.window import ARMED

QUICK = Options(journal=False, drain_interval=0.01)


@contextlib.contextmanager
def running(directory: Path, **more: Any) -> Generator[tuple[Profiler, list[Window]]]:
    """A profiler that records what it is asked for, and the windows that it has finished."""
    windows: list[Window] = []
    chosen: dict[str, Any] = {"schedule": never, "options": QUICK, **more}
    with stepscope.trace(output_dir=directory, on_trace_ready=windows.append, **chosen) as profiler:
        yield profiler, windows
    profiler.raise_errors()
    assert profiler.audit() == ()


def work(profiler: Profiler, steps: int) -> None:
    """Steps with something in them."""
    for _ in range(steps):
        with stepscope.span("work"):
            pass
        profiler.step()


def numbers(windows: list[Window]) -> list[list[int]]:
    """The steps of each window."""
    return [[step.number for step in window.steps] for window in windows]


def facts(window: Window) -> Any:
    """A window's facts of its request."""
    found = window.metadata.get(ARMED)
    assert found is not None
    return found

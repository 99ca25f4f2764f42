"""A loop that runs on a thread of its own during a test, for those that ask its profiler for windows."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import stepscope
from stepscope import Control, Options

QUICK = Options(journal=False, drain_interval=0.01)


class Loop:
    """A loop on a thread of its own, for tests that ask it from this one."""

    def __init__(self, profiler: stepscope.Profiler, step_ms: float = 1.0) -> None:
        self.profiler = profiler
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(step_ms / 1000,))
        self._thread.start()

    def _run(self, seconds: float) -> None:
        while not self._stop.wait(seconds):
            with stepscope.span("work"):
                pass
            self.profiler.step()

    def end(self) -> None:
        """Ends it."""
        self._stop.set()
        self._thread.join()


@contextlib.contextmanager
def looping(directory: Path, control: Control, **more: Any) -> Generator[tuple[stepscope.Profiler, list[Any]]]:
    """A loop that runs during the test, and its windows."""
    windows: list[Any] = []
    with stepscope.trace(
        control=control, output_dir=directory, options=QUICK, on_trace_ready=windows.append, **more
    ) as profiler:
        loop = Loop(profiler)
        try:
            yield profiler, windows
        finally:
            loop.end()


def wait(condition: Any) -> None:
    """Looks until something holds."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)

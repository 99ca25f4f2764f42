"""A stepscope session to measure in, whose files are thrown away."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepscope import Profiler


@contextmanager
def scratch() -> Generator[Path]:
    """A directory that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as directory:
        yield Path(directory)


@contextmanager
def session(**arguments: Any) -> Generator[Profiler]:
    """`stepscope.trace(**arguments)`, running, in a directory of its own."""
    import stepscope

    with scratch() as directory, stepscope.trace(output_dir=directory, **arguments) as profiler:
        yield profiler


@contextmanager
def signals(names: str) -> Generator[None]:
    """Profilers that start meanwhile record these signals: names with commas, `all` or `none`."""
    before = os.environ["STEPSCOPE_SIGNALS"]
    os.environ["STEPSCOPE_SIGNALS"] = names
    try:
        yield
    finally:
        os.environ["STEPSCOPE_SIGNALS"] = before


class Accounts:
    """The time that a profiler took and the events that it lost, since this was made."""

    def __init__(self, profiler: Profiler) -> None:
        self._profiler = profiler
        self._produced, self._lost = self._read()

    def facts(self) -> dict[str, float]:
        """Events produced, and those that full rings and queues dropped."""
        produced, lost = self._read()
        return {"events": produced - self._produced, "dropped": lost - self._lost}

    def _read(self) -> tuple[int, int]:
        statistics = self._profiler.statistics()
        if statistics.recorder is None or statistics.pipeline is None:
            return 0, 0
        queues = sum(sum(output.ledger.dropped.values()) for output in statistics.pipeline.exporters)
        return statistics.recorder.produced, statistics.recorder.dropped + queues

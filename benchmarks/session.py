"""A stepscope session to measure in, whose files are thrown away."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepscope import Profiler


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as directory:
        yield Path(directory)


@contextmanager
def session(**arguments: Any) -> Iterator[Profiler]:
    """`stepscope.trace(**arguments)`, running, in a directory of its own."""
    import stepscope

    with scratch() as directory, stepscope.trace(output_dir=directory, **arguments) as profiler:
        yield profiler


def dropped(profiler: Profiler) -> int:
    """Events that full rings lost so far, in this process."""
    recorder = profiler.statistics().recorder
    return 0 if recorder is None else recorder.dropped

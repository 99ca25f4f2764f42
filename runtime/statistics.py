"""The accounts of a profiler: a frozen snapshot of every stage."""

from __future__ import annotations

import msgspec

from stepscope.runtime.pipeline import PipelineStatistics
from stepscope.runtime.recorder import RecorderStatistics


class ProfilerStatistics(msgspec.Struct, frozen=True):
    """A frozen snapshot of every stage."""

    state: str
    """`new`, `starting`, `running`, `stopped`, `closed`, or `inert` in a process that takes no part (`Profiler.diagnostics`)."""
    steps: int
    """Steps begun since `start()`."""
    steps_ignored: int
    """Calls of `step()` while not running."""
    windows: int
    training_thread_ns: int
    """Time that changes took from the threads that called `start`, `step` and `stop`, in ns."""
    recorder: RecorderStatistics | None
    pipeline: PipelineStatistics | None

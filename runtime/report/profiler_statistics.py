"""The accounts of a profiler: a frozen snapshot of every stage."""

from __future__ import annotations

import msgspec

from stepscope.runtime.loop.pipeline_statistics import PipelineStatistics
from stepscope.runtime.recording.recorder_statistics import RecorderStatistics
from stepscope.runtime.steps.transition_costs import TransitionStatistics


class ProfilerStatistics(msgspec.Struct, frozen=True):
    """An immutable snapshot of every stage."""

    state: str
    """`new`, `starting`, `running`, `stopped`, `closed`, or `inert` in a process that does not record (`Profiler.diagnostics`)."""
    steps: int
    """Steps begun since `start()`."""
    steps_ignored: int
    """Calls of `step()` while not running."""
    windows: int
    windows_left_out: int
    """Windows that were not recorded, because too many others waited for the window router."""
    pauses_not_drawn: int
    """Pauses that the trace does not show, for the same reason. Nothing was recorded in them, but spans are not cut there."""
    transitions: TransitionStatistics
    """Time of starts, changes and stops on the calling threads."""
    recorder: RecorderStatistics | None
    pipeline: PipelineStatistics | None
    timed_out: bool = False
    """The loop did not answer before the deadline of closing. `stepscope recover` finds the events that were not delivered."""

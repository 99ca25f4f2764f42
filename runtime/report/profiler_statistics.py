"""The accounts of a profiler: a frozen snapshot of every stage."""

from __future__ import annotations

import msgspec

from stepscope.runtime.loop.pipeline_statistics import PipelineStatistics
from stepscope.runtime.recording.recorder_statistics import RecorderStatistics
from stepscope.runtime.steps.transitions import TransitionStatistics


class ProfilerStatistics(msgspec.Struct, frozen=True):
    """A frozen snapshot of every stage."""

    state: str
    """`new`, `starting`, `running`, `stopped`, `closed`, or `inert` in a process that takes no part (`Profiler.diagnostics`)."""
    steps: int
    """Steps begun since `start()`."""
    steps_ignored: int
    """Calls of `step()` while not running."""
    windows: int
    windows_left_out: int
    """Windows that were not recorded: too many others waited to be sorted."""
    pauses_untold: int
    """Pauses that are not drawn, and at which spans are not cut, for the same reason; nothing was recorded in them."""
    transitions: TransitionStatistics
    """What starts, changes and stops took from the threads that called."""
    recorder: RecorderStatistics | None
    pipeline: PipelineStatistics | None
    given_up: bool = False
    """Closing was given up, as the loop did not answer: what was not delivered is left to `stepscope recover`."""

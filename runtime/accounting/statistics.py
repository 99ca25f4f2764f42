"""The accounts of a profiler: a frozen snapshot of every stage."""

from __future__ import annotations

import msgspec

from stepscope.runtime.export.exporter_statistics import ExporterStatistics
from stepscope.runtime.flight.recorder import FlightStatistics
from stepscope.runtime.loop.inbox import InboxStatistics
from stepscope.runtime.overhead.budget import OverheadStatistics
from stepscope.runtime.recording.recorder_statistics import RecorderStatistics
from stepscope.runtime.recording.transitions import TransitionStatistics
from stepscope.runtime.windows.router import WindowsStatistics


class PipelineStatistics(msgspec.Struct, frozen=True):
    """Accounts of every stage behind the recorder."""

    inbox: InboxStatistics
    windows: WindowsStatistics
    exporters: tuple[ExporterStatistics, ...]
    drained: int
    """Events that the recorder held while this profiler was open."""
    routed: int
    """Those that were sorted into windows, or found to belong to none."""
    unrouted: int
    """Those that were dropped because the deadline for closing came first."""
    undelivered: int
    """Events of backends that have yet to be sorted: the steps of their time are not known."""
    batches: int
    offered: int
    """Events that were offered to each exporter."""
    loop_ns: int
    """Time that the loop spent on this pipeline, exporters not included, in ns."""
    overhead: OverheadStatistics
    flight: FlightStatistics | None = None
    faults: int = 0
    """What went wrong in the runtime itself: there is a mistake in stepscope then, or no memory."""


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

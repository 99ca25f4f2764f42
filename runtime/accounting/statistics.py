"""The accounts of a profiler: an immutable snapshot of every stage."""

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
    """Events that the recorder passed to this profiler."""
    routed: int
    """Of these, events that the window router has processed."""
    unrouted: int
    """Of these, events that were dropped because closing reached its deadline."""
    undelivered: int
    """Events of backends that wait for the window router: the steps of their time are not known yet."""
    batches: int
    offered: int
    """Events offered to each exporter."""
    loop_ns: int
    """Time that the loop spent on this pipeline, exporters not included, in ns."""
    overhead: OverheadStatistics
    flight: FlightStatistics | None = None
    faults: int = 0
    """Internal errors: mistakes in stepscope, or a lack of memory."""


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
    """Time that starts, changes and stops took on the threads that called."""
    recorder: RecorderStatistics | None
    pipeline: PipelineStatistics | None
    given_up: bool = False
    """The loop did not answer before the deadline of closing. `stepscope recover` finds the events that were not delivered."""

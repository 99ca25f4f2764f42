"""The accounts of a pipeline: a frozen snapshot of its stages."""

from __future__ import annotations

import msgspec

from stepscope.runtime.export.exporter_statistics import ExporterStatistics
from stepscope.runtime.flight.recorder import FlightStatistics
from stepscope.runtime.inbox.inbox import InboxStatistics
from stepscope.runtime.overhead.budget import OverheadStatistics
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

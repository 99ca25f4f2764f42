"""The accounts of a pipeline: a frozen snapshot of its stages."""

from __future__ import annotations

import msgspec

from stepscope.runtime.export.exporter_accounts import ExporterStatistics
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
    """Events that the recorder passed to this profiler."""
    routed: int
    """Of these, events that the window router has processed."""
    unrouted: int
    """Of these, events that were dropped because closing reached its deadline."""
    undelivered: int
    """Events of backends that wait for the window router: the steps of their time are not known yet."""
    offered: int
    """Events offered to each exporter."""
    loop_ns: int
    """Time that the loop spent on this pipeline, exporters not included, in ns."""
    overhead: OverheadStatistics
    flight: FlightStatistics | None = None
    faults: int = 0
    """Internal errors: mistakes in stepscope, or a lack of memory."""

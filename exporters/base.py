"""The contract of an exporter, a consumer of events."""

from __future__ import annotations

from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.export.exporter import Exporter
from stepscope.runtime.export.run import Run
from stepscope.runtime.windows.window import Window

__all__ = ["EventBatch", "Exporter", "Run", "Window"]

"""The contract of an exporter, a consumer of events."""

from __future__ import annotations

from stepscope.runtime.consumer import Exporter
from stepscope.runtime.events import EventBatch
from stepscope.runtime.run import Run
from stepscope.runtime.window import Window

__all__ = ["EventBatch", "Exporter", "Run", "Window"]

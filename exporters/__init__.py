"""Consumers of events, one format per file.

Read first: `base`, which is the contract, then `memory`, then `journal` and `chrome`, then the folders `files`, `network` and `stream`.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

if __name__ != "stepscope.exporters":
    raise ImportError(f"{__name__} is a folder of stepscope's sources: import stepscope.exporters")

from stepscope.runtime.lazy import load_numpy as _load_numpy

_load_numpy()

if TYPE_CHECKING:
    from stepscope.exporters.base import EventBatch, Exporter, Run
    from stepscope.exporters.callback import CallbackExporter as CallbackExporter
    from stepscope.exporters.chrome import ChromeTraceExporter as ChromeTraceExporter
    from stepscope.exporters.console import ConsoleExporter as ConsoleExporter
    from stepscope.exporters.files.scalars import StepScalarExporter as StepScalarExporter
    from stepscope.exporters.journal import JournalExporter as JournalExporter
    from stepscope.exporters.memory import MemoryExporter as MemoryExporter
    from stepscope.exporters.nats.exporter import NatsExporter as NatsExporter
    from stepscope.exporters.nats.servers import NatsAccess as NatsAccess
    from stepscope.exporters.nats.servers import NatsLimits as NatsLimits
    from stepscope.exporters.otlp.exporter import OtlpExporter as OtlpExporter
    from stepscope.exporters.otlp.options import OtlpOptions as OtlpOptions
    from stepscope.exporters.parquet import ParquetExporter as ParquetExporter
    from stepscope.exporters.perfetto import PerfettoExporter as PerfettoExporter
    from stepscope.exporters.stream.exporter import CollectorExporter as CollectorExporter
    from stepscope.exporters.stream.transport import LinkSettings as LinkSettings
    from stepscope.exporters.tensorboard import tensorboard_trace_handler as tensorboard_trace_handler
    from stepscope.runtime.events.record import Kind as Kind
else:
    from stepscope.runtime.lazy import lazy as _lazy

    __getattr__, __dir__ = _lazy(
        __name__,
        {
            "stepscope.exporters.base": ("EventBatch", "Exporter", "Run"),
            "stepscope.exporters.callback": ("CallbackExporter",),
            "stepscope.exporters.chrome": ("ChromeTraceExporter",),
            "stepscope.exporters.stream.exporter": ("CollectorExporter",),
            "stepscope.exporters.stream.transport": ("LinkSettings",),
            "stepscope.exporters.console": ("ConsoleExporter",),
            "stepscope.exporters.journal": ("JournalExporter",),
            "stepscope.exporters.memory": ("MemoryExporter",),
            "stepscope.exporters.nats.servers": ("NatsAccess", "NatsLimits"),
            "stepscope.exporters.nats.exporter": ("NatsExporter",),
            "stepscope.exporters.otlp.exporter": ("OtlpExporter",),
            "stepscope.exporters.otlp.options": ("OtlpOptions",),
            "stepscope.exporters.parquet": ("ParquetExporter",),
            "stepscope.exporters.perfetto": ("PerfettoExporter",),
            "stepscope.exporters.files.scalars": ("StepScalarExporter",),
            "stepscope.exporters.tensorboard": ("tensorboard_trace_handler",),
            "stepscope.runtime.events.record": ("Kind",),
        },
    )

__all__ = [
    "CallbackExporter",
    "ChromeTraceExporter",
    "CollectorExporter",
    "ConsoleExporter",
    "EventBatch",
    "Exporter",
    "JournalExporter",
    "Kind",
    "LinkSettings",
    "MemoryExporter",
    "NatsAccess",
    "NatsExporter",
    "NatsLimits",
    "OtlpExporter",
    "OtlpOptions",
    "ParquetExporter",
    "PerfettoExporter",
    "Run",
    "StepScalarExporter",
    "tensorboard_trace_handler",
]

_import_module("stepscope.exporters.formats")  # registers the formats of files by their endings

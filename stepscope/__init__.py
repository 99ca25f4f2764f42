"""stepscope: an event-driven tracing runtime for training loops."""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING
from typing import Any as _Any

try:
    import stepscope.runtime as _runtime  # first: it imports numpy such that the threads of that take no signals
except ModuleNotFoundError as _error:
    if _error.name != "stepscope.runtime":
        raise
    raise ImportError(
        "this is a checkout of stepscope, whose parts Python does not know yet: leave its directory, or install it there with "
        "`make install` or `pip install -e .`"
    ) from _error

# isort: split
import stepscope.exporters.formats as _formats
import stepscope.runtime.decorate as _decorate
import stepscope.runtime.exit as _exit
from stepscope.backends.base import Backend, BackendReport, Sink
from stepscope.backends.replay import ReplayBackend
from stepscope.backends.scripted import ScriptedBackend
from stepscope.backends.simulated import SimulatedDevice
from stepscope.backends.torch import TorchBackend
from stepscope.backends.torch_arm import arm as _arm
from stepscope.backends.torch_compile import watch as _watch_compiler
from stepscope.exporters.base import EventBatch, Exporter, Run
from stepscope.exporters.chrome import ChromeTraceExporter
from stepscope.exporters.console import ConsoleExporter
from stepscope.exporters.journal import JournalExporter
from stepscope.exporters.memory import MemoryExporter
from stepscope.exporters.perfetto import PerfettoExporter
from stepscope.exporters.tensorboard import tensorboard_trace_handler
from stepscope.runtime._core import counter, flow, instant, span
from stepscope.runtime.control.armed import Armed, ArmedStatus
from stepscope.runtime.control.settings import Control
from stepscope.runtime.control.window_detail import WindowDetail
from stepscope.runtime.control.window_request import WindowRequest
from stepscope.runtime.domain import Domain
from stepscope.runtime.errors import (
    BackendError,
    ControlError,
    ExporterError,
    OutputError,
    ProfilerStateError,
    ScheduleError,
    StepscopeError,
    TriggerError,
)
from stepscope.runtime.events import Kind
from stepscope.runtime.executors import propagate
from stepscope.runtime.flight.memory_high import MemoryHigh
from stepscope.runtime.flight.not_finite import NotFinite
from stepscope.runtime.flight.raised import Raised
from stepscope.runtime.flight.settings import FlightRecorder
from stepscope.runtime.flight.slow_step import SlowStep
from stepscope.runtime.flight.stalled import Stalled
from stepscope.runtime.flight.terminated import Terminated
from stepscope.runtime.flight.trigger import Evaluator, Finding, News, Trigger
from stepscope.runtime.instrument import Instrumentation, instrument
from stepscope.runtime.join import join
from stepscope.runtime.join import join_if_told as _join_if_told
from stepscope.runtime.options import Options
from stepscope.runtime.overhead import OverheadBudget, OverheadStatistics
from stepscope.runtime.profiler import Profiler
from stepscope.runtime.schedule import ProfilerAction, schedule
from stepscope.runtime.summary import Summary
from stepscope.runtime.trust import TrustReport
from stepscope.runtime.window import Window
from stepscope.trace import trace

if TYPE_CHECKING:
    from stepscope.backends.host import HostBackend
    from stepscope.backends.nvml import NvmlBackend
    from stepscope.backends.perf import PerfBackend
    from stepscope.exporters.collector.exporter import CollectorExporter
    from stepscope.exporters.collector.settings import LinkSettings
    from stepscope.exporters.nats.access import NatsAccess
    from stepscope.exporters.nats.exporter import NatsExporter
    from stepscope.exporters.nats.limits import NatsLimits
    from stepscope.exporters.otlp.exporter import OtlpExporter
    from stepscope.exporters.otlp.options import OtlpOptions
    from stepscope.exporters.parquet import ParquetExporter

_LATER = {
    "HostBackend": "stepscope.backends.host",
    "NvmlBackend": "stepscope.backends.nvml",
    "PerfBackend": "stepscope.backends.perf",
    "OtlpExporter": "stepscope.exporters.otlp.exporter",
    "OtlpOptions": "stepscope.exporters.otlp.options",
    "CollectorExporter": "stepscope.exporters.collector.exporter",
    "NatsAccess": "stepscope.exporters.nats.access",
    "NatsExporter": "stepscope.exporters.nats.exporter",
    "NatsLimits": "stepscope.exporters.nats.limits",
    "ParquetExporter": "stepscope.exporters.parquet",
    "LinkSettings": "stepscope.exporters.collector.settings",
}
"""Imported when they are asked for: few programs need them, and each would pay for them at its start."""

# Imported for what they install: spans as decorators, closing at the interpreter's exit, formats by file ending.
_INSTALLED = (_decorate, _exit, _formats, _runtime)

# Before torch is imported, or never: torch looks for a collector once.
_arm()
_watch_compiler()
_join_if_told()


def __getattr__(name: str) -> _Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = getattr(_import_module(_LATER[name]), name)
    return value


def __dir__() -> list[str]:
    """What shells complete: the public names, those that are imported later among them."""
    return [*__all__]


__all__ = [
    "Armed",
    "ArmedStatus",
    "Backend",
    "BackendError",
    "BackendReport",
    "ChromeTraceExporter",
    "CollectorExporter",
    "ConsoleExporter",
    "Control",
    "ControlError",
    "Domain",
    "Evaluator",
    "EventBatch",
    "Exporter",
    "ExporterError",
    "Finding",
    "FlightRecorder",
    "HostBackend",
    "Instrumentation",
    "JournalExporter",
    "Kind",
    "LinkSettings",
    "MemoryExporter",
    "MemoryHigh",
    "NatsAccess",
    "NatsExporter",
    "NatsLimits",
    "News",
    "NotFinite",
    "NvmlBackend",
    "Options",
    "OtlpExporter",
    "OtlpOptions",
    "OutputError",
    "OverheadBudget",
    "OverheadStatistics",
    "ParquetExporter",
    "PerfBackend",
    "PerfettoExporter",
    "Profiler",
    "ProfilerAction",
    "ProfilerStateError",
    "Raised",
    "ReplayBackend",
    "Run",
    "ScheduleError",
    "ScriptedBackend",
    "SimulatedDevice",
    "Sink",
    "SlowStep",
    "Stalled",
    "StepscopeError",
    "Summary",
    "Terminated",
    "TorchBackend",
    "Trigger",
    "TriggerError",
    "TrustReport",
    "Window",
    "WindowDetail",
    "WindowRequest",
    "counter",
    "flow",
    "instant",
    "instrument",
    "join",
    "propagate",
    "schedule",
    "span",
    "tensorboard_trace_handler",
    "trace",
]

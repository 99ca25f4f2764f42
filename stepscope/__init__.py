"""stepscope: an event-driven tracing runtime for training loops."""

from __future__ import annotations

import stepscope.exporters.formats as _formats
import stepscope.runtime.decorate as _decorate
import stepscope.runtime.exit as _exit
from stepscope.backends.replay import ReplayBackend
from stepscope.backends.scripted import ScriptedBackend
from stepscope.backends.simulated import SimulatedDevice
from stepscope.backends.torch import TorchBackend
from stepscope.backends.torch_arm import arm as _arm
from stepscope.exporters.chrome import ChromeTraceExporter
from stepscope.exporters.console import ConsoleExporter
from stepscope.exporters.journal import JournalExporter
from stepscope.exporters.memory import MemoryExporter
from stepscope.exporters.tensorboard import tensorboard_trace_handler
from stepscope.runtime._core import counter, flow, instant, span
from stepscope.runtime.domain import Domain
from stepscope.runtime.executors import propagate
from stepscope.runtime.flight.memory_high import MemoryHigh
from stepscope.runtime.flight.not_finite import NotFinite
from stepscope.runtime.flight.raised import Raised
from stepscope.runtime.flight.settings import FlightRecorder
from stepscope.runtime.flight.slow_step import SlowStep
from stepscope.runtime.flight.stalled import Stalled
from stepscope.runtime.flight.trigger import Trigger
from stepscope.runtime.join import join
from stepscope.runtime.join import join_if_told as _join_if_told
from stepscope.runtime.options import Options
from stepscope.runtime.overhead import OverheadBudget, OverheadStatistics
from stepscope.runtime.profiler import Profiler
from stepscope.runtime.schedule import ProfilerAction, schedule
from stepscope.runtime.window import Window
from stepscope.trace import trace

# Imported for what they install: spans as decorators, closing at the interpreter's exit, formats by file ending.
_INSTALLED = (_decorate, _exit, _formats)

# Before torch is imported, or never: torch looks for a collector once.
_arm()
_join_if_told()

__all__ = [
    "ChromeTraceExporter",
    "ConsoleExporter",
    "Domain",
    "FlightRecorder",
    "JournalExporter",
    "MemoryExporter",
    "MemoryHigh",
    "NotFinite",
    "Options",
    "OverheadBudget",
    "OverheadStatistics",
    "Profiler",
    "ProfilerAction",
    "Raised",
    "ReplayBackend",
    "ScriptedBackend",
    "SimulatedDevice",
    "SlowStep",
    "Stalled",
    "TorchBackend",
    "Trigger",
    "Window",
    "counter",
    "flow",
    "instant",
    "join",
    "propagate",
    "schedule",
    "span",
    "tensorboard_trace_handler",
    "trace",
]

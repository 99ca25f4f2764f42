"""The profiler of MindSpore, recorded by stepscope: change the import, and scripts run as they are.

It works without MindSpore, and records its operators where it is imported. The log has the limits of a device when a
profiler starts. `docs/mindspore.md` has the options. Where MS_PROFILER_OPTIONS asks for it, importing this starts
recording.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.compat.mindspore.analysis.analysis import Analysis, ProductStatus, WindowAnalysis
from stepscope.compat.mindspore.environment import EnvProfiler
from stepscope.compat.mindspore.errors import (
    NothingToAnalyse,
    ProfilerDirNotFoundException,
    ProfilerException,
    ProfilerFileNotFoundException,
    ProfilerIOException,
    ProfilerPathErrorException,
    ProfilerRawFileException,
    WireError,
)
from stepscope.compat.mindspore.monitor.dynamic_args import DynamicProfilerArgs
from stepscope.compat.mindspore.monitor.dynamic_monitor import DynamicProfilerMonitor
from stepscope.compat.mindspore.mstx import mstx
from stepscope.compat.mindspore.options.enums import (
    AicoreMetrics,
    AnalysisMode,
    ExportType,
    HostSystem,
    ProfilerActivity,
    ProfilerLevel,
)
from stepscope.compat.mindspore.options.schedule import (
    Schedule,
    TraceHandler,
    schedule,
    tensor_board_trace_handler,
    tensorboard_trace_handler,
)
from stepscope.compat.mindspore.products.operators import OperatorRow
from stepscope.compat.mindspore.profiler import Profiler, _ExperimentalConfig, analyse, profile  # pyright: ignore[reportPrivateUsage]
from stepscope.runtime.lazy import lazy as _lazy

EnvProfiler.init_profiler()

if not TYPE_CHECKING:
    __getattr__, __dir__ = _lazy(__name__)

__all__ = [
    "AicoreMetrics",
    "Analysis",
    "AnalysisMode",
    "DynamicProfilerArgs",
    "DynamicProfilerMonitor",
    "EnvProfiler",
    "ExportType",
    "HostSystem",
    "NothingToAnalyse",
    "OperatorRow",
    "ProductStatus",
    "Profiler",
    "ProfilerActivity",
    "ProfilerDirNotFoundException",
    "ProfilerException",
    "ProfilerFileNotFoundException",
    "ProfilerIOException",
    "ProfilerLevel",
    "ProfilerPathErrorException",
    "ProfilerRawFileException",
    "Schedule",
    "TraceHandler",
    "WindowAnalysis",
    "WireError",
    "_ExperimentalConfig",
    "analyse",
    "mstx",
    "profile",
    "schedule",
    "tensor_board_trace_handler",
    "tensorboard_trace_handler",
]

"""stepscope: an event-driven tracing runtime for training loops and services.

This module has what a beginner needs. The rest is in `stepscope.exporters`, `.backends`, `.triggers`, `.control`, `.results` and `.errors`.
Importing stepscope names its native core as torch's ITT collector (the environment variable INTEL_LIBITTNOTIFY64), as that is
looked for once, when torch is imported; docs/what-it-touches.md has everything that stepscope changes in a process.
"""

from __future__ import annotations

import os as _os
from importlib import import_module as _import_module
from typing import TYPE_CHECKING

try:
    import stepscope.runtime as _runtime
except ModuleNotFoundError as _error:
    if _error.name != "stepscope.runtime":
        raise
    raise ImportError(
        "./stepscope, a folder of stepscope's source, hides the installed package: run the program from another directory, or "
        "`pip install -e .` here"
    ) from _error

from stepscope.backends.torch.arm import arm as _arm
from stepscope.backends.torch.importing import COMPILER as _COMPILER
from stepscope.backends.torch.importing import TorchImport as _TorchImport
from stepscope.runtime._core import counter, flow, instant, span
from stepscope.runtime._core import set_decorator as _set_decorator
from stepscope.runtime.lazy import lazy as _lazy
from stepscope.runtime.threads import (
    native_threads as _native_threads,  # before a library such as gevent replaces these
)
from stepscope.runtime.version import VERSION as __version__

if TYPE_CHECKING:
    from stepscope import backends as backends
    from stepscope import control as control
    from stepscope import errors as errors
    from stepscope import exporters as exporters
    from stepscope import results as results
    from stepscope import triggers as triggers
    from stepscope.analysis.explain import explain as explain
    from stepscope.analysis.reading.recording import load as load
    from stepscope.backends.torch.backend import TorchBackend as TorchBackend
    from stepscope.build import trace as trace
    from stepscope.exporters.chrome import ChromeTraceExporter as ChromeTraceExporter
    from stepscope.exporters.perfetto import PerfettoExporter as PerfettoExporter
    from stepscope.exporters.stream.exporter import CollectorExporter as CollectorExporter
    from stepscope.exporters.tensorboard import tensorboard_trace_handler as tensorboard_trace_handler
    from stepscope.runtime.annotations.domain import Domain as Domain
    from stepscope.runtime.annotations.instrument import instrument as instrument
    from stepscope.runtime.annotations.tasks import propagate as propagate
    from stepscope.runtime.control.settings import Control as Control
    from stepscope.runtime.errors import StepscopeError as StepscopeError
    from stepscope.runtime.flight.settings import FlightRecorder as FlightRecorder
    from stepscope.runtime.lifecycle.join import join as join
    from stepscope.runtime.options import Options as Options
    from stepscope.runtime.profiler import Profiler as Profiler
    from stepscope.runtime.schedule.action import ProfilerAction as ProfilerAction
    from stepscope.runtime.schedule.schedule import schedule as schedule
    from stepscope.runtime.windows.window import Window as Window
else:
    __getattr__, __dir__ = _lazy(
        __name__,
        {
            "stepscope.backends": (),
            "stepscope.control": (),
            "stepscope.errors": (),
            "stepscope.exporters": (),
            "stepscope.results": (),
            "stepscope.triggers": (),
            "stepscope.analysis.explain": ("explain",),
            "stepscope.analysis.reading.recording": ("load",),
            "stepscope.backends.torch.backend": ("TorchBackend",),
            "stepscope.build": ("trace",),
            "stepscope.exporters.chrome": ("ChromeTraceExporter",),
            "stepscope.exporters.stream.exporter": ("CollectorExporter",),
            "stepscope.exporters.perfetto": ("PerfettoExporter",),
            "stepscope.exporters.tensorboard": ("tensorboard_trace_handler",),
            "stepscope.runtime.schedule.action": ("ProfilerAction",),
            "stepscope.runtime.control.settings": ("Control",),
            "stepscope.runtime.annotations.domain": ("Domain",),
            "stepscope.runtime.errors": ("StepscopeError",),
            "stepscope.runtime.annotations.tasks": ("propagate",),
            "stepscope.runtime.flight.settings": ("FlightRecorder",),
            "stepscope.runtime.annotations.instrument": ("instrument",),
            "stepscope.runtime.lifecycle.join": ("join",),
            "stepscope.runtime.options": ("Options",),
            "stepscope.runtime.profiler": ("Profiler",),
            "stepscope.runtime.schedule.schedule": ("schedule",),
            "stepscope.runtime.windows.window": ("Window",),
        },
        others={
            "profile": "trace(), or stepscope.torch.profile",
            "record_function": "span(), or stepscope.torch.record_function",
            "start": "trace(), which starts a profiler",
            "stop": "the profiler's own: trace().stop()",
            "step": "the profiler's own: trace().step()",
        },
    )

_BEFORE_OTHERS = (_runtime, _native_threads)
"""Imported for what it notes."""

# At the first decoration, when the module takes its place.
_set_decorator(lambda span, function: _import_module("stepscope.runtime.annotations.decorate").decorate(span, function))
# Before torch is imported, or never: torch looks for a collector once.
_arm()
_TorchImport(lambda: _import_module("stepscope.backends.torch.compile").watch(), _COMPILER).watch()
if _os.environ.get("STEPSCOPE_JOIN") == "1":
    from stepscope.runtime.lifecycle.join import join_from_environment as _join_from_environment

    _join_from_environment()

__all__ = [
    "ChromeTraceExporter",
    "CollectorExporter",
    "Control",
    "Domain",
    "FlightRecorder",
    "Options",
    "PerfettoExporter",
    "Profiler",
    "ProfilerAction",
    "StepscopeError",
    "TorchBackend",
    "Window",
    "__version__",
    "counter",
    "explain",
    "flow",
    "instant",
    "instrument",
    "join",
    "load",
    "propagate",
    "schedule",
    "span",
    "tensorboard_trace_handler",
    "trace",
]

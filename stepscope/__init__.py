"""stepscope: an event-driven tracing runtime for training loops."""

from __future__ import annotations

from stepscope.runtime._core import counter, flow, instant, span
from stepscope.runtime.options import Options
from stepscope.runtime.profiler import Profiler
from stepscope.runtime.schedule import ProfilerAction, schedule
from stepscope.runtime.window import Window
from stepscope.trace import trace

__all__ = [
    "Options",
    "Profiler",
    "ProfilerAction",
    "Window",
    "counter",
    "flow",
    "instant",
    "schedule",
    "span",
    "trace",
]

"""stepscope for users of torch.profiler: `from stepscope.torch import profile, record_function, schedule, ...`.

Everything has torch's names, parameters and methods; docs/torch.md says what differs. Imports may stand in any order;
if torch was imported first, its own engine records, and a window's end costs more.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

from stepscope.compat.torch.activities import has_torch as _has_torch
from stepscope.compat.torch.activities import supported_activities
from stepscope.compat.torch.profile import profile
from stepscope.compat.torch.record_function import record_function
from stepscope.compat.torch.results import View, tensorboard_trace_handler
from stepscope.runtime.lazy import lazy as _lazy
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.schedule.schedule import schedule

if TYPE_CHECKING:
    from typing import Any as _Any

    from stepscope.compat.torch.activities import ProfilerActivity

    DeviceType: _Any
    ExecutionTraceObserver: _Any
    itt: _Any
    kineto_available: _Any
else:
    _THEIRS = ("DeviceType", "ExecutionTraceObserver", "ProfilerActivity", "itt", "kineto_available")
    """torch's own, imported when they are asked for, and torch with them."""
    _unknown, __dir__ = _lazy(__name__)

    def __getattr__(name):
        if name not in _THEIRS:
            return _unknown(name)
        if _has_torch():
            return getattr(_import_module("torch.profiler"), name)
        if name == "ProfilerActivity":
            return _import_module("stepscope.compat.torch.activities").ProfilerActivity
        raise AttributeError(f"{__name__}.{name} is torch's own, and torch is not installed")


__all__ = [
    "DeviceType",
    "ExecutionTraceObserver",
    "ProfilerAction",
    "ProfilerActivity",
    "View",
    "itt",
    "kineto_available",
    "profile",
    "record_function",
    "schedule",
    "supported_activities",
    "tensorboard_trace_handler",
]

"""Errors that stepscope raises."""

from __future__ import annotations

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

__all__ = [
    "BackendError",
    "ControlError",
    "ExporterError",
    "OutputError",
    "ProfilerStateError",
    "ScheduleError",
    "StepscopeError",
    "TriggerError",
]

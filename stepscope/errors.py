"""Errors that stepscope raises."""

from __future__ import annotations

from stepscope.runtime.errors import (
    BackendError,
    ClosedError,
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
    "ClosedError",
    "ControlError",
    "ExporterError",
    "OutputError",
    "ProfilerStateError",
    "ScheduleError",
    "StepscopeError",
    "TriggerError",
]

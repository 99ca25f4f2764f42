"""Triggers of the flight recorder, and the types for a trigger of your own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepscope.runtime.flight.settings import FlightRecorder as FlightRecorder
    from stepscope.runtime.flight.triggers.memory_high import MemoryHigh as MemoryHigh
    from stepscope.runtime.flight.triggers.not_finite import NotFinite as NotFinite
    from stepscope.runtime.flight.triggers.raised import Raised as Raised
    from stepscope.runtime.flight.triggers.slow_step import SlowStep as SlowStep
    from stepscope.runtime.flight.triggers.stalled import Stalled as Stalled
    from stepscope.runtime.flight.triggers.terminated import Terminated as Terminated
    from stepscope.runtime.flight.triggers.trigger import Evaluator, Finding, News, Trigger
else:
    from stepscope.runtime.lazy import lazy as _lazy

    __getattr__, __dir__ = _lazy(
        __name__,
        {
            "stepscope.runtime.flight.triggers.memory_high": ("MemoryHigh",),
            "stepscope.runtime.flight.triggers.not_finite": ("NotFinite",),
            "stepscope.runtime.flight.triggers.raised": ("Raised",),
            "stepscope.runtime.flight.settings": ("FlightRecorder",),
            "stepscope.runtime.flight.triggers.slow_step": ("SlowStep",),
            "stepscope.runtime.flight.triggers.stalled": ("Stalled",),
            "stepscope.runtime.flight.triggers.terminated": ("Terminated",),
            "stepscope.runtime.flight.triggers.trigger": ("Evaluator", "Finding", "News", "Trigger"),
        },
    )

__all__ = [
    "Evaluator",
    "Finding",
    "FlightRecorder",
    "MemoryHigh",
    "News",
    "NotFinite",
    "Raised",
    "SlowStep",
    "Stalled",
    "Terminated",
    "Trigger",
]

"""Triggers of the flight recorder, and the types for a trigger of your own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepscope.runtime.flight.memory_high import MemoryHigh as MemoryHigh
    from stepscope.runtime.flight.not_finite import NotFinite as NotFinite
    from stepscope.runtime.flight.raised import Raised as Raised
    from stepscope.runtime.flight.settings import FlightRecorder as FlightRecorder
    from stepscope.runtime.flight.slow_step import SlowStep as SlowStep
    from stepscope.runtime.flight.stalled import Stalled as Stalled
    from stepscope.runtime.flight.terminated import Terminated as Terminated
    from stepscope.runtime.flight.trigger import (
        Evaluator as Evaluator,
    )
    from stepscope.runtime.flight.trigger import (
        Finding as Finding,
    )
    from stepscope.runtime.flight.trigger import (
        News as News,
    )
    from stepscope.runtime.flight.trigger import (
        Trigger as Trigger,
    )
else:
    from stepscope.runtime.lazy import lazy as _lazy

    __getattr__, __dir__ = _lazy(
        __name__,
        {
            "stepscope.runtime.flight.memory_high": ("MemoryHigh",),
            "stepscope.runtime.flight.not_finite": ("NotFinite",),
            "stepscope.runtime.flight.raised": ("Raised",),
            "stepscope.runtime.flight.settings": ("FlightRecorder",),
            "stepscope.runtime.flight.slow_step": ("SlowStep",),
            "stepscope.runtime.flight.stalled": ("Stalled",),
            "stepscope.runtime.flight.terminated": ("Terminated",),
            "stepscope.runtime.flight.trigger": (
                "Evaluator",
                "Finding",
                "News",
                "Trigger",
            ),
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

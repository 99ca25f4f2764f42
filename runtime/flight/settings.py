"""Settings of the flight recorder."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from stepscope.runtime.flight.triggers.memory_high import MemoryHigh
from stepscope.runtime.flight.triggers.not_finite import NotFinite
from stepscope.runtime.flight.triggers.raised import Raised
from stepscope.runtime.flight.triggers.slow_step import SlowStep
from stepscope.runtime.flight.triggers.stalled import Stalled
from stepscope.runtime.flight.triggers.terminated import Terminated
from stepscope.runtime.flight.triggers.trigger import Trigger
from stepscope.runtime.settings.arguments import got
from stepscope.runtime.settings.checked import Checked

Whole = Annotated[int, msgspec.Meta(ge=0)]

MAX_STEPS = 1 << 16


class FlightRecorder(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keeps the last steps at all times, and saves them as a window when a trigger fires: `trace(keep_last=...)`.

    No event is in two windows: where triggers follow one another closely, a window begins where the one before ended.

    Raises:
        ValueError: for a value out of its range, or two triggers of one name; names the field.
        TypeError: if a trigger is none.
    """

    __unchecked__ = ("triggers",)

    steps: Annotated[int, msgspec.Meta(ge=1, le=MAX_STEPS)]
    """Steps that a window holds, the one in which the trigger fired included."""
    triggers: tuple[Trigger, ...] = (SlowStep(), Raised(), NotFinite(), MemoryHigh(), Stalled(), Terminated())
    """What saves, besides `Profiler.save`. Each by its name, once."""
    cooldown: Annotated[float, msgspec.Meta(ge=0)] = 30.0
    """Seconds after a trigger has saved in which the same trigger does not save again, unless it finds something twice as
    bad, such as a step of twice the time; it is counted."""
    cooldown_steps: Whole = 0
    """The same in steps; both must have passed."""
    after: Annotated[int, msgspec.Meta(ge=0, le=MAX_STEPS)] = 0
    """Steps after the one of the trigger that are saved as well."""
    keep_newest: Whole = 8
    """Saved windows that are kept because they are the newest; others are deleted, unless they are among the slowest."""
    keep_slowest: Whole = 8
    """Saved windows that are kept because their slowest step is among the slowest."""
    max_windows: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Windows that are saved in all, those deleted since included; what fires later is counted only."""
    max_bytes: Annotated[int, msgspec.Meta(ge=1 << 20)] = 128 << 20
    """What may be kept in memory; steps that do not fit are let go before their time, and windows say so."""

    def __post_init__(self) -> None:
        super().__post_init__()
        given: Any = self.triggers
        if not isinstance(given, list | tuple):
            raise TypeError(
                f"FlightRecorder.triggers must be a tuple of triggers, {got(given)}; write triggers=({_likely(given)},)"
            )
        for trigger in self.triggers:
            if isinstance(trigger, type) or not isinstance(trigger, Trigger):
                raise TypeError(
                    f"FlightRecorder.triggers holds {trigger!r}, which has no name or no evaluator(); write {_likely(trigger)}"
                )
        names = [trigger.name for trigger in self.triggers]
        for name in names:
            if not isinstance(name, str) or not name:
                raise TypeError(f"FlightRecorder.triggers has a trigger named {name!r}; its name must be a str")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(
                f"FlightRecorder.triggers has two triggers named {twice[0]!r}: their counts would be mixed"
            )
        if not self.keep_newest and not self.keep_slowest:
            raise ValueError("FlightRecorder.keep_newest and keep_slowest are both 0: nothing that is saved would stay")


def _likely(given: object) -> str:
    """What was probably meant by something that is no trigger: a class that was not called, or a trigger's name."""
    kinds = (SlowStep, Raised, NotFinite, MemoryHigh, Stalled, Terminated)
    if isinstance(given, Trigger) and not isinstance(given, type):
        return f"{type(given).__name__}(...)"
    return next(
        (f"stepscope.triggers.{kind.__name__}()" for kind in kinds if given is kind or given == kind().name),
        "stepscope.triggers.SlowStep()",
    )

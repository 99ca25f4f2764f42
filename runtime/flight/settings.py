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
    """Retains the last steps at all times, and saves them as a window when a trigger fires: `trace(keep_last=...)`.

    No event is in two windows: if triggers fire in quick succession, a window begins where the previous one ended.

    Raises:
        ValueError: for a value out of its range, or two triggers of one name; names the field.
        TypeError: if a trigger is none.
    """

    __unchecked__ = ("triggers",)

    steps: Annotated[int, msgspec.Meta(ge=1, le=MAX_STEPS)]
    """Steps of a window, including the one in which the trigger fired."""
    triggers: tuple[Trigger, ...] = (SlowStep(), Raised(), NotFinite(), MemoryHigh(), Stalled(), Terminated())
    """Triggers that save, in addition to `Profiler.save`. Their names must differ."""
    cooldown: Annotated[float, msgspec.Meta(ge=0)] = 30.0
    """Seconds after a save in which the same trigger only counts. A finding that is twice as bad, such as a step of twice the
    time, saves all the same."""
    cooldown_steps: Whole = 0
    """The same in steps; both must have passed."""
    after: Annotated[int, msgspec.Meta(ge=0, le=MAX_STEPS)] = 0
    """Steps after the one of the trigger that are saved, too."""
    keep_newest: Whole = 8
    """Number of newest saved windows to retain. A window that is neither among the newest nor the slowest is deleted."""
    keep_slowest: Whole = 8
    """Number of saved windows to retain because their slowest step is among the slowest."""
    max_windows: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Limit of saved windows, including those deleted since. After that, triggers only count."""
    max_bytes: Annotated[int, msgspec.Meta(ge=1 << 20)] = 128 << 20
    """Memory for retained steps. Older steps that do not fit are discarded early, and windows have a note of that."""

    def __post_init__(self) -> None:
        super().__post_init__()
        triggers: Any = self.triggers
        if not isinstance(triggers, list | tuple):
            raise TypeError(
                f"FlightRecorder.triggers must be a tuple of triggers, {got(triggers)}; write triggers=({_likely(triggers)},)"
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


def _likely(value: object) -> str:
    """Suggests a trigger for a value that is none: a class that was not called, or the name of a trigger."""
    kinds = (SlowStep, Raised, NotFinite, MemoryHigh, Stalled, Terminated)
    if isinstance(value, Trigger) and not isinstance(value, type):
        return f"{type(value).__name__}(...)"
    return next(
        (f"stepscope.triggers.{kind.__name__}()" for kind in kinds if value is kind or value == kind().name),
        "stepscope.triggers.SlowStep()",
    )

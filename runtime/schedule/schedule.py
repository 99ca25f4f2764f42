"""Which steps are recorded: a pure function from a step's number to an action."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol, SupportsIndex, runtime_checkable

import msgspec

from stepscope.runtime.errors import ScheduleError
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.settings.arguments import got
from stepscope.runtime.settings.validation import suggesting

if TYPE_CHECKING:
    from stepscope.runtime.schedule.plan import Plan

NEVER: Final = sys.maxsize
"""The result of `next_change` if there is no further change. It fits in a signed 64-bit integer."""

ScheduleFunction = Callable[[int], object]
"""Any callable from a step's number (0-based) to a value that `checked_action` accepts."""


@runtime_checkable
class PlannedSchedule(Protocol):
    """A schedule that can compute its next change, so that it is not called at every step. It must be pure."""

    def __call__(self, step: int, /) -> ProfilerAction:
        """Returns the action of a step."""
        ...

    def next_change(self, step: int, /) -> int:
        """Returns the first later step whose action differs from this step's, or that begins another window.

        `NEVER` if there is none. The step after a RECORD_AND_SAVE is always a change: its window has ended.
        """
        ...


class Schedule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Skips `skip_first` steps, then repeats: wait, warm up, record. Made by `schedule`.

    Calling it gives the action of a step, the same as `torch.profiler.schedule` gives for the same values.

    Raises:
        TypeError: if a value is not an integer.
        ScheduleError: if a value is out of its range. A `ValueError`.
    """

    wait: int = 0
    warmup: int = 0
    active: int
    repeat: int = 0
    skip_first: int = 0
    skip_first_wait: bool | int = False

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = _whole_number(name, getattr(self, name), least)
            # Normalised, so that schedules with the same meaning are equal and encode alike.
            msgspec.structs.force_setattr(self, name, bool(value) if name == "skip_first_wait" else value)

    def __call__(self, step: int, /) -> ProfilerAction:
        """Returns the action of a step.

        Args:
            step: its number; 0 is the first.

        Raises:
            ScheduleError: if it is negative.
        """
        return self.at(step)[0]

    @property
    def cycle(self) -> int:
        """Length of one cycle in steps."""
        return self.wait + self.warmup + self.active

    @property
    def origin(self) -> int:
        """Step at which the first cycle begins, or would begin if its wait were not skipped; may be negative."""
        return self.skip_first - (self.wait if self.skip_first_wait else 0)

    @property
    def end(self) -> int:
        """First step after the last cycle; `NEVER` if they go on for ever."""
        return self.origin + self.repeat * self.cycle if self.repeat else NEVER

    def next_change(self, step: int, /) -> int:
        """Returns the first later step with another action, or in another window; `NEVER` if there is none.

        Raises:
            ScheduleError: if the step is negative.
        """
        return self.at(step)[1]

    def at(self, step: int, /) -> tuple[ProfilerAction, int]:
        """Returns the action of a step, and its `next_change`.

        Raises:
            ScheduleError: if the step is negative.
        """
        if step < 0:
            raise ScheduleError(f"step must be 0 or more, got {step}")
        # Written out, as a loop of short steps pays for each call.
        wait, recorded = self.wait, self.wait + self.warmup
        cycle = recorded + self.active
        origin = self.skip_first - (wait if self.skip_first_wait else 0)
        if step < self.skip_first:
            return ProfilerAction.NONE, origin + wait
        if self.repeat and step >= origin + self.repeat * cycle:
            return ProfilerAction.NONE, NEVER
        position = (step - origin) % cycle
        if position < wait:
            return ProfilerAction.NONE, step + wait - position
        if position < recorded:
            return ProfilerAction.WARMUP, step + recorded - position
        if position < cycle - 1:
            return ProfilerAction.RECORD, step + cycle - 1 - position
        return ProfilerAction.RECORD_AND_SAVE, step + 1

    def next_record(self, step: int, /) -> int:
        """Returns the first step from this one on that is recorded; `NEVER` if there is none.

        Raises:
            ScheduleError: if the step is negative.
        """
        while step != NEVER and not self(step).records:
            step = self.next_change(step)
        return step

    def plan(self, steps: int, *, first: int = 0) -> Plan:
        """Shows what will happen in a loop; `print()` it.

        Args:
            steps: length of the loop.
            first: number of its first step, for a run that goes on where another ended.

        Raises:
            ScheduleError: if one of them is negative.
        """
        from stepscope.runtime.schedule.plan import plan_of

        return plan_of(self, steps, first=first)

    def __repr__(self) -> str:
        values = [f"{name}={getattr(self, name)}" for name in ("wait", "warmup", "active")]
        values += [f"{name}={getattr(self, name)}" for name in _OPTIONAL if getattr(self, name)]
        return f"schedule({', '.join(values)})"


_LEAST = {"wait": 0, "warmup": 0, "active": 1, "repeat": 0, "skip_first": 0, "skip_first_wait": 0}
_OPTIONAL = ("repeat", "skip_first", "skip_first_wait")


def _whole_number(name: str, value: object, least: int) -> int:
    boolean = name == "skip_first_wait"
    allowed = "True, False or a whole number" if boolean else "a whole number"
    # A bool is an int to Python; as a number of steps it is a slip.
    if not isinstance(value, SupportsIndex) or (isinstance(value, bool) and not boolean):
        raise TypeError(f"{name} must be {allowed}, {least} or more, {got(value)}")
    number = value.__index__()
    if number < least:
        raise ScheduleError(f"{name} must be {allowed}, {least} or more, got {number}")
    return number


@suggesting
def schedule(
    *,
    wait: int,
    warmup: int,
    active: int,
    repeat: int = 0,
    skip_first: int = 0,
    skip_first_wait: int | bool = 0,
) -> Schedule:
    """Makes a schedule with the arguments, and the answers, of `torch.profiler.schedule` (as of torch 2.13).

    Args:
        wait: steps at the beginning of each cycle that do nothing.
        warmup: steps after these in which backends record and discard.
        active: steps after these that are recorded: one window. At least 1.
        repeat: number of cycles; 0 for no limit.
        skip_first: steps before the first cycle.
        skip_first_wait: whether to skip the wait of the first cycle only.

    Raises:
        TypeError: if a value is not an integer.
        ScheduleError: if a value is out of its range. A `ValueError`.
    """
    return Schedule(
        wait=wait,
        warmup=warmup,
        active=active,
        repeat=repeat,
        skip_first=skip_first,
        skip_first_wait=skip_first_wait,
    )


class Unchanging(msgspec.Struct, frozen=True):
    """The same action for every step."""

    action: ProfilerAction

    def __call__(self, step: int, /) -> ProfilerAction:
        return self.action

    def next_change(self, step: int, /) -> int:
        return NEVER

    def __repr__(self) -> str:
        return "always" if self.action.records else "never"

    def __reduce__(self) -> str:
        return repr(self)  # a copy is the same object


always: Final = Unchanging(ProfilerAction.RECORD)
"""Records every step, in one window that ends with the run. The default."""

never: Final = Unchanging(ProfilerAction.NONE)
"""Records no step by itself. The default with `control`, where windows are requested."""

"""The actions of a schedule: what to do in a step."""

from __future__ import annotations

import enum
from typing import SupportsIndex

from stepscope.runtime.errors import ScheduleError


class ProfilerAction(enum.IntEnum):
    """The action for one step. Names and values are those of `torch.profiler.ProfilerAction`."""

    NONE = 0
    """Nothing is recorded."""
    WARMUP = 1
    """Backends are switched on and their events are discarded, so that the first recorded step is a normal one."""
    RECORD = 2
    """The step is recorded."""
    RECORD_AND_SAVE = 3
    """The step is recorded, and its window ends with it."""

    __str__ = enum.Enum.__str__
    """The name, as torch's has it, and not the number."""

    @property
    def records(self) -> bool:
        """Whether the step is recorded."""
        return self >= 2  # a look-up of the member would be slower

    @property
    def symbol(self) -> str:
        """The character for the line of a plan: `-`, `W`, `R` or `S`."""
        return "-WRS"[self]


# MindSpore writes WARM_UP for the same action.
_BY_NAME = {**ProfilerAction.__members__, "WARM_UP": ProfilerAction.WARMUP}
_ALLOWED = ", ".join(f"{action.name} ({action.value})" for action in ProfilerAction)


def checked_action(value: object, step: int) -> ProfilerAction:
    """Converts the return value of a user's schedule to an action.

    Args:
        value: a `ProfilerAction`, a member of another enumeration with the same name, such as torch's, or an integer from 0 to
            3.
        step: number of the step, 0-based, for the message.

    Raises:
        ScheduleError: for any other value; names the value, the step and what is allowed.
    """
    if isinstance(value, ProfilerAction):
        return value
    if isinstance(value, enum.Enum):
        found = _BY_NAME.get(value.name)
        if found is not None:
            return found
    elif isinstance(value, SupportsIndex) and not isinstance(value, bool):
        number = value.__index__()
        if 0 <= number <= 3:
            return ProfilerAction(number)
    raise ScheduleError(
        f"unknown action: the schedule returned {value!r} for {step_text(step)}; it must return one of the "
        f"ProfilerActions {_ALLOWED}"
    )


def step_text(first: int, last: int | None = None) -> str:
    """Names a step, or consecutive steps, by their numbers: 0 for the first, as in `step_num` and `ProfilerStep#0`."""
    return f"step {first}" if last is None or last == first else f"steps {first}-{last}"

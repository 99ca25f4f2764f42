"""What a step does: the answer of every schedule."""

from __future__ import annotations

import enum
from typing import SupportsIndex

from stepscope.runtime.errors import ScheduleError


class ProfilerAction(enum.IntEnum):
    """What happens during one step. Names and values are those of `torch.profiler.ProfilerAction`."""

    NONE = 0
    """Nothing is recorded."""
    WARMUP = 1
    """Backends are switched on and what they give is thrown away, so that the first recorded step is a normal one."""
    RECORD = 2
    """The step is recorded."""
    RECORD_AND_SAVE = 3
    """The step is recorded, and its window ends with it."""

    @property
    def records(self) -> bool:
        """Whether events of the step are kept."""
        return self >= 2  # a look-up of the member would take longer than all the rest

    @property
    def symbol(self) -> str:
        """One character for the line of a plan: `-`, `W`, `R` or `S`."""
        return "-WRS"[self]


# MindSpore writes WARM_UP for the same action.
_BY_NAME = {**ProfilerAction.__members__, "WARM_UP": ProfilerAction.WARMUP}
_ALLOWED = ", ".join(f"{action.name} ({action.value})" for action in ProfilerAction)


def checked_action(value: object, step: int) -> ProfilerAction:
    """Turns whatever a user's schedule returned into an action.

    Args:
        value: a `ProfilerAction`, a member of another profiler's enumeration with one of the names (so that a schedule
            made by torch works, and torch need not be imported to know it), or an integer from 0 to 3.
        step: the step that was asked for, 0-based; only for the message.

    Raises:
        ScheduleError: for everything else, naming the value, the step and what is allowed. Other profilers ignore
            an unknown action, and record nothing from there on.
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
    """Names one step or a run of steps both as people count them and as `step_num` does: `step 3 (step_num 2)`."""
    if last is None or last == first:
        return f"step {first + 1} (step_num {first})"
    return f"steps {first + 1}-{last + 1} (step_num {first}-{last})"

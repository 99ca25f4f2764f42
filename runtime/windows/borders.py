"""Where windows begin and end, as the thread that steps says it."""

from __future__ import annotations

from typing import Any

import msgspec

from stepscope.runtime.windows.step_marks import StepMark


class WindowBegins(msgspec.Struct, frozen=True):
    """A window begins with this step."""

    mark: StepMark
    left_out: int = 0
    """Windows since the one before that were to be recorded, and were not: the loop was too far behind."""
    armed: dict[str, Any] | None = None
    """What its metadata say of the request that it was armed by."""


class WindowEnds(msgspec.Struct, frozen=True):
    """The window that is open ends."""

    at: int
    complete: bool
    reason: str = ""
    cut_short: bool = False
    """The run ended, after a call of `step()`: what follows that call is no step."""
    needs_last: bool = False
    """It is incomplete if it is cut short: the schedule ends with the step that was not ended."""
    armed: dict[str, Any] | None = None
    """What its metadata are to say of the request beside what they said at its begin."""

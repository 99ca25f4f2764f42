"""Messages of the stepping thread: a window begins, a window ends."""

from __future__ import annotations

from typing import Any

import msgspec

from stepscope.runtime.windows.step_marks import StepMark


class WindowBegins(msgspec.Struct, frozen=True):
    """A window begins with this step."""

    mark: StepMark
    skipped: int = 0
    """Windows that were skipped before this one, because the loop was too far behind."""
    armed: dict[str, Any] | None = None
    """Description of the request that armed it, for the window's metadata."""


class WindowEnds(msgspec.Struct, frozen=True):
    """The open window ends."""

    at: int
    complete: bool
    reason: str = ""
    cut_short: bool = False
    """The run ended after a call of `step()`. Events after that call belong to no step."""
    needs_last: bool = False
    """If it is cut short, it is incomplete: the schedule includes the step that was not ended."""
    armed: dict[str, Any] | None = None
    """Additions to the description of the request in the window's metadata."""

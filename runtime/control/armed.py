"""The answer to a request for a window."""

from __future__ import annotations

from typing import Literal

import msgspec

ArmedState = Literal["queued", "running", "recorded", "aborted", "cut", "missed", "withdrawn"]
"""Of an armed window. `cut`: the run ended inside of it. `missed`: its steps passed without it. `withdrawn`: it was
aborted, or not agreed on, before it began."""


class Armed(msgspec.Struct, frozen=True, omit_defaults=True):
    """What becomes of a request: true if something will be recorded."""

    accepted: bool
    first: int | None = None
    """The first step that will be recorded; `None` if that depends on another window, which ends by the clock."""
    last: int | None = None
    """The last one; `None` if the window ends by the clock, or by another's end."""
    run_id: str = ""
    reason: str = ""
    """Why it was refused, or in what it differs from what was asked for."""
    nearest: int | None = None
    """If it was refused because of its steps: the first that such a window could begin with."""

    def __bool__(self) -> bool:
        return self.accepted

    def __str__(self) -> str:
        if not self.accepted:
            return f"refused: {self.reason}"
        if self.first is None:
            text = "queued"
        elif self.last is None:
            text = f"recording from step {self.first} on"
        else:
            text = (
                f"recording steps {self.first}-{self.last}"
                if self.last > self.first
                else f"recording step {self.first}"
            )
        return f"{text} ({self.reason})" if self.reason else text


class ArmedStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """One armed window, as it stands."""

    run_id: str
    trigger: str
    """What asked for it: `call`, `file`, `signal`, `socket`, `collector`, `environment`, or as a program says."""
    requested: str
    """In words."""
    state: ArmedState
    first: int | None = None
    """First step, planned or recorded."""
    last: int | None = None
    """Last step, planned or recorded."""
    reason: str = ""

"""The answer to a request for a window."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from stepscope.runtime.settings.documented import Documented

Step = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
"""A window may be asked for that is longer than steps have numbers."""

ArmedState = Literal["queued", "running", "recorded", "aborted", "cut", "missed", "withdrawn"]
"""Of an armed window. `cut`: the run ended inside of it. `missed`: its steps passed without it. `withdrawn`: it was
aborted, or could not be planned, before it began."""


class Armed(Documented, frozen=True, omit_defaults=True):
    """What becomes of a request: true if something will be recorded."""

    accepted: bool
    """Whether something will be recorded."""
    first: Step | None = None
    """The first step that will be recorded; `None` if that depends on another window, which ends by the clock."""
    last: Step | None = None
    """The last one; `None` if the window ends by the clock, or by another's end. Without a first one: to an abort, the step
    with which windows end that have begun by then."""
    run_id: str = ""
    """That of the request."""
    reason: str = ""
    """Why it was refused, or in what it differs from what was asked for."""
    nearest: Step | None = None
    """If it was refused because of its steps: the first that such a window could begin with."""

    def __bool__(self) -> bool:
        return self.accepted

    def __str__(self) -> str:
        if not self.accepted:
            return f"refused: {self.reason}"
        if self.first is None and self.last is not None:
            return self.reason
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


class ArmedStatus(Documented, frozen=True, omit_defaults=True):
    """One armed window, as it stands."""

    run_id: str
    """That of the request."""
    trigger: str
    """What asked for it: `call`, `file`, `signal`, `socket`, `collector`, `environment`, or as a program says."""
    requested: str
    """In words."""
    state: ArmedState
    """Whether it waits (`queued`) or runs, or what became of it: `cut` by the run's end, `missed` if its steps passed without
    it, `withdrawn` before it began."""
    first: Step | None = None
    """First step, planned or recorded."""
    last: Step | None = None
    """Last step, planned or recorded."""
    reason: str = ""
    """Why it is so, and in what it differs from what was asked for."""
    granularity: Annotated[int, msgspec.Meta(ge=1, lt=1 << 53)] = 1
    """It is made of whole groups of so many steps."""

    @property
    def open(self) -> bool:
        """Whether it runs or waits."""
        return self.state in ("queued", "running")

"""The answer to a request for a window."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from stepscope.runtime.schedule.action import step_text
from stepscope.runtime.settings.documented import Documented

Step = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
"""The last step of a requested window may be larger than any step number."""

ArmedState = Literal["queued", "running", "recorded", "aborted", "cut", "missed", "withdrawn"]
"""State of an armed window. `cut`: the run ended inside of it. `missed`: its steps passed without it. `withdrawn`: it was
aborted, or could not be planned, before it began."""


class Armed(Documented, frozen=True, omit_defaults=True):
    """The answer to a request. It is true if something will be recorded."""

    accepted: bool
    """Whether something will be recorded."""
    first: Step | None = None
    """The first step to be recorded."""
    last: Step | None = None
    """The last step; `None` if the window ends by the clock. In the answer to an abort, without `first`: the step with which
    windows end."""
    run_id: str = ""
    """Run id of the request."""
    reason: str = ""
    """Why it was refused, or how the window differs from the request."""
    nearest: Step | None = None
    """If it was refused because of its steps: the first step with which it would be accepted."""

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
            text = f"recording {step_text(self.first, self.last)}"
        return f"{text} ({self.reason})" if self.reason else text


class ArmedStatus(Documented, frozen=True, omit_defaults=True):
    """State of an armed window."""

    run_id: str
    """Run id of the request."""
    trigger: str
    """Origin of the request: `call`, `file`, `signal`, `socket`, `collector`, `environment`, or a name that the program chose."""
    requested: str
    """The request as text."""
    state: ArmedState
    """`queued` or `running`; at the end `recorded`, `aborted`, `cut` by the run's end, `missed` if its steps passed without it,
    or `withdrawn` before it began."""
    first: Step | None = None
    """First step, planned or recorded."""
    last: Step | None = None
    """Last step, planned or recorded."""
    reason: str = ""
    """Reason of the state, and how the window differs from the request."""
    granularity: Annotated[int, msgspec.Meta(ge=1, lt=1 << 53)] = 1
    """It is made of whole groups of so many steps."""

    @property
    def open(self) -> bool:
        """Whether it runs or waits."""
        return self.state in ("queued", "running")

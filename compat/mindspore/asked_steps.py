"""Steps that a configuration asks for, and the windows that come of them; 1 is the first step."""

from __future__ import annotations

from typing import Literal

import msgspec

Late = Literal["refuse", "clip"]
Key = tuple[int | str, int, str, int, tuple[int, ...] | None]


class Asked(msgspec.Struct, frozen=True):
    """The steps that a configuration requests; 1 is the first."""

    start: int | Literal["next"]
    stop: int
    run_id: str = ""
    """Tells it from another one of the same steps."""
    command: str = ""
    """For the window that runs: `extend`, `abort` or nothing."""
    steps: int = 0
    """How many, where there is no `stop`."""
    ranks: tuple[int, ...] | None = None
    """Those that record; `None` for all."""

    @property
    def key(self) -> Key:
        """What makes it another window."""
        return self.start, self.stop, self.run_id, self.steps, self.ranks

    @property
    def last(self) -> int:
        """The last step; -1 if that depends on the first, or there is none."""
        return self.start + self.steps - 1 if self.stop == -1 and self.steps and self.start != "next" else self.stop

    @property
    def is_nothing(self) -> bool:
        """True if no window is requested."""
        return self.start == -1 or (self.start != "next" and self.last == -1)

    def text(self) -> str:
        """In a few words: `steps 2 to 6`."""
        return f"{self.steps} steps from the next on" if self.start == "next" else f"steps {self.start} to {self.last}"

    def problem(self) -> str:
        """Why no window can be like that; empty if one can."""
        if self.start == "next":
            return "" if self.steps > 0 else "start_step 'next' needs steps, which says how many"
        if self.start < 1 or self.last < 1:
            return f"start_step {self.start} and stop_step {self.last} must be 1 or more, or -1 for no window"
        if self.start > self.last:
            return f"start_step {self.start} is greater than stop_step {self.last}"
        return ""


class Planned(msgspec.Struct, frozen=True):
    """A window that runs, or has to begin now."""

    first: int
    """Its first step: what is recorded, not what was asked for."""
    last: int
    asked: Asked
    configuration: object = None
    """The content of the file when the window was armed."""


class Ended(msgspec.Struct, frozen=True):
    """A window that has to end now."""

    first: int
    last: int
    """The last step that was recorded."""
    reason: str = ""
    """Why it is shorter than it was asked for; empty if it is not."""

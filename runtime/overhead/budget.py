"""What recording costs: the budget that a user gives, and what was measured."""

from __future__ import annotations

from typing import Annotated

import msgspec

from stepscope.runtime.display.text_table import human_count
from stepscope.runtime.options import PositiveFloat
from stepscope.runtime.settings.arguments import got
from stepscope.runtime.settings.checked import Checked
from stepscope.runtime.settings.documented import Documented

Share = Annotated[float, msgspec.Meta(gt=0, le=1)]


class OverheadBudget(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What recording may cost; detail is lowered to stay within it. Unknown fields are refused."""

    fraction: Share = 0.01
    """Cost allowed, as a share of the time that is recorded: 0.01 is 1 %."""
    interval: PositiveFloat = 0.5
    """Seconds of recorded time between two readings; detail changes once in that time at most."""
    background: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    """How much a second of processor time in the background counts. 1 where training uses every core, or holds Python's
    interpreter lock all the time; less where cores are idle."""

    @classmethod
    def of(cls, given: float | OverheadBudget | None) -> OverheadBudget | None:
        """What `trace(overhead_budget=...)` was given, as a budget.

        Raises:
            TypeError: if it is neither a number nor a budget.
            ValueError: if it is no share of the time.
        """
        if given is None or isinstance(given, OverheadBudget):
            return given
        if isinstance(given, bool) or not isinstance(given, int | float):
            raise TypeError(
                f"overhead_budget must be a share of the time, such as 0.01, or stepscope.control.OverheadBudget, {got(given)}"
            )
        if given >= 1:
            raise ValueError(f"overhead_budget is a share of the time, so below 1: 0.01 is 1 %, got {given!r}")
        return cls(fraction=float(given))


JUDGED_NS = 1_000_000_000
"""Time recorded from which on a share of it says something."""


class OverheadStatistics(Documented, frozen=True, kw_only=True):
    """What one profiler's recording has cost so far. Times in ns."""

    recorded_ns: int
    """Time in which the profiler recorded, pauses not included."""
    steps: int
    """Steps recorded."""
    events: int
    """Events of the program, recorded on its threads."""
    operators: int
    """Operators of frameworks, recorded on its threads."""
    training_ns: int
    """What that took from the threads of the program: events times the cost of one, which was measured when the profiler
    was opened; and the time in transitions."""
    background_ns: int
    """Processor time of the runtime's own threads, the share of this profiler."""
    detail: str
    """The level of detail now."""
    budget: float | None = None
    """The share of the time that it may cost; `None` without a budget."""
    changes: int = 0
    """How often the level changed."""
    lowered_ns: int = 0
    """Recorded time with less than full detail."""
    left_out: int = 0
    """Events and operators that were left out by lowered detail: neither recorded nor lost. They are counted when they
    would have begun. What nobody at all recorded is counted for the process, so profilers with a budget that run at once
    all count it; what backends left out is not counted."""

    @property
    def fraction(self) -> float:
        """The cost as a share of the time recorded."""
        return (self.training_ns + self.background_ns) / self.recorded_ns if self.recorded_ns else 0.0

    def __str__(self) -> str:
        steps = max(self.steps, 1)
        text = (
            f"{self.fraction:.2%} of the time recorded, all threads together; per step {self.training_ns / steps / 1000:.1f} us on the program's "
            f"threads (estimated, {human_count(round((self.events + self.operators) / steps), 'event')}) and "
            f"{self.background_ns / steps / 1000:.1f} us of processor time "
            "of the loop and the exporters in the background"
        )
        if self.recorded_ns < JUDGED_NS:  # the first start of everything is most of what it sees
            text = f"less than {JUDGED_NS / 1e9:g} s was recorded: too short a run to say"
        if self.budget is None:
            return text
        left_out = f", {human_count(self.left_out, 'event')} left out by that" if self.left_out else ""
        lowered = self.lowered_ns / self.recorded_ns if self.recorded_ns else 0.0
        over = " (exceeded)" if self.recorded_ns >= JUDGED_NS and self.fraction > self.budget else ""
        return f"{text}; budget {self.budget:.2%}{over}, detail now {self.detail!r}, lowered in {lowered:.0%} of it{left_out}"

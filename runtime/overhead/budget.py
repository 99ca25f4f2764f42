"""The overhead budget that a user sets, and the measured cost of recording."""

from __future__ import annotations

from typing import Annotated

import msgspec

from stepscope.runtime.display.text_table import human_count, human_time
from stepscope.runtime.options import PositiveFloat
from stepscope.runtime.settings.arguments import got
from stepscope.runtime.settings.checked import Checked
from stepscope.runtime.settings.documented import Documented

Share = Annotated[float, msgspec.Meta(gt=0, le=1)]


class OverheadBudget(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The cost that recording may have. Detail is lowered to stay within it. Unknown fields are refused."""

    fraction: Share = 0.01
    """Cost allowed, as a share of the time that is recorded: 0.01 is 1 %."""
    interval: PositiveFloat = 0.5
    """Seconds of recorded time between two readings; detail changes once in that time at most."""
    background: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    """Weight of processor time in the background. Use 1 where training uses every core, or holds Python's interpreter lock
    all the time, and less where cores are idle."""

    @classmethod
    def of(cls, value: float | OverheadBudget | None) -> OverheadBudget | None:
        """Converts the argument of `trace(overhead_budget=...)` to a budget.

        Raises:
            TypeError: if it is neither a number nor a budget.
            ValueError: if it is not a share of the time.
        """
        if value is None or isinstance(value, OverheadBudget):
            return value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(
                f"overhead_budget must be a share of the time, such as 0.01, or stepscope.control.OverheadBudget, {got(value)}"
            )
        if value >= 1:
            raise ValueError(f"overhead_budget is a share of the time, so below 1: 0.01 is 1 %, got {value!r}")
        return cls(fraction=float(value))


MIN_RECORDED_NS = 1_000_000_000
"""In a shorter recording, starting everything is most of the cost, so the share is not reported."""


class OverheadStatistics(Documented, frozen=True, kw_only=True):
    """Cost of recording of one profiler so far. Times in ns."""

    recorded_ns: int
    """Time in which the profiler recorded, pauses not included."""
    steps: int
    """Steps recorded."""
    events: int
    """Events of the program, recorded on its threads."""
    operators: int
    """Operators of frameworks, recorded on its threads."""
    training_ns: int
    """Time that recording took on the threads of the program: the number of events times the cost of one, measured when the
    profiler was opened, plus the time in transitions."""
    background_ns: int
    """Processor time of the runtime's own threads, the share of this profiler."""
    detail: str
    """The level of detail now."""
    budget: float | None = None
    """The allowed share of the time; `None` without a budget."""
    changes: int = 0
    """How often the level changed."""
    lowered_ns: int = 0
    """Recorded time with less than full detail."""
    left_out: int = 0
    """Events and operators that lowered detail excluded: neither recorded nor lost. They are counted when they would have
    begun. If no profiler recorded one, it is counted for the process, so each profiler with a budget counts it. Events that
    backends did not produce are not counted."""

    @property
    def fraction(self) -> float:
        """The cost as a share of the time recorded."""
        return (self.training_ns + self.background_ns) / self.recorded_ns if self.recorded_ns else 0.0

    def __str__(self) -> str:
        steps = max(self.steps, 1)
        text = (
            f"{self.fraction:.2%} of the time recorded: a step has {human_time(self.training_ns / steps)} of recording on the program's threads "
            f"(estimated, {human_count(round((self.events + self.operators) / steps), 'event')}), "
            f"and {human_time(self.background_ns / steps)} of processor time in the background"
        )
        if self.recorded_ns < MIN_RECORDED_NS:
            text = f"less than {MIN_RECORDED_NS / 1e9:g} s was recorded: too short to measure"
        if self.budget is None:
            return text
        left_out = f", {human_count(self.left_out, 'event')} left out by that" if self.left_out else ""
        lowered = self.lowered_ns / self.recorded_ns if self.recorded_ns else 0.0
        over = " (exceeded)" if self.recorded_ns >= MIN_RECORDED_NS and self.fraction > self.budget else ""
        return f"{text}; budget {self.budget:.2%}{over}, detail now {self.detail!r}, lowered in {lowered:.0%} of it{left_out}"

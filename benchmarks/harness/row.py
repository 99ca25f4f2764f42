"""A row of the table: one operation, its budget, and how each tool does it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import StrEnum

import msgspec

from benchmarks.harness.scale import Scale


class Sample(msgspec.Struct, frozen=True):
    """The measurement of one round."""

    value: float
    """In the row's unit; the baseline is subtracted already."""
    baseline: float | None = None
    """The same without the operation, such as the empty loop around it; `None` if there is no such thing."""
    facts: dict[str, float] = {}
    """Facts by which to judge the value, such as the number of dropped events."""


class Tool(StrEnum):
    """The measured tools; each has processes of its own, in which the others are not imported."""

    STEPSCOPE = "stepscope"
    TORCH = "torch"
    VIZTRACER = "viztracer"
    OPENTELEMETRY = "opentelemetry"
    NVTX = "nvtx"
    PERFETTO = "perfetto"


Round = Callable[[], Sample]
"""Measures once."""

Probe = Callable[[Scale], AbstractContextManager[Round]]
"""Prepares a tool, gives the round, and cleans up."""


class Contender(msgspec.Struct, frozen=True):
    """One tool in a row."""

    tool: Tool
    label: str
    """The measured call, as its users write it."""
    probe: Probe
    every: int = 1
    """Has its turn in every n-th round: slow ones have fewer."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One operation."""

    key: str
    """Names the row for `--only` and in JSON: `span.recording`."""
    what: str
    """The operation, in Markdown; `{events:,}` and other fields of the scale are filled in."""
    unit: str
    budget: float | None = None
    """At most this, or at least this if more is better; `None`: nothing is promised."""
    more_is_better: bool = False
    fresh: bool = False
    """True if each round needs a new process."""
    heavy: bool = False
    """True if a round takes seconds, so that few must do."""
    alternating: bool = False
    """True if a round is one alternation, of which more are needed than of other rounds."""
    contenders: tuple[Contender, ...] = ()
    cited: str = ""
    """Figures of tools that are not run, because they need other versions of Python and numpy."""

    def title(self, scale: Scale) -> str:
        """Describes the measurement at a scale."""
        return self.what.format_map(
            {
                **msgspec.structs.asdict(scale),
                "four_times_memory_events": 4 * scale.memory_events,
                "twice_events": 2 * scale.events,
                "eight_times_events": 8 * scale.events,
            }
        )

    def rounds(self, scale: Scale) -> int:
        """How many rounds are measured."""
        if self.alternating:
            return scale.alternations
        few = (scale.rounds + 1) // 2
        return min(few, 5) if self.fresh or self.heavy else scale.rounds

    def better(self, value: float, than: float) -> float | None:
        """How many times better one value is than another, below 1 if it is worse; `None` where noise is below 0."""
        more, less = (value, than) if self.more_is_better else (than, value)
        return more / less if less > 0 and more > 0 else None

    def met(self, value: float) -> bool | None:
        """True if a value keeps the budget; `None` without one."""
        if self.budget is None:
            return None
        return value >= self.budget if self.more_is_better else value <= self.budget

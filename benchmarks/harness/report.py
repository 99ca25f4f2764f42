"""The measurements of a run."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from benchmarks.harness.machine import Machine
from benchmarks.harness.rounds import Measured
from benchmarks.harness.row import Row, Tool


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One row, measured."""

    key: str
    title: str
    unit: str
    budget: float | None
    more_is_better: bool
    met: bool | None
    """True if the median keeps the budget; `None` if there is none, or nothing was measured."""
    cited: str
    measured: tuple[Measured, ...]
    ratios: dict[str, float]
    """How many times better stepscope's median is than that of each other contender, by label."""

    @classmethod
    def of(cls, row: Row, title: str, measured: Sequence[Measured]) -> Outcome:
        """Compares the medians of a row."""
        own = next((m.median for m in measured if m.tool is Tool.STEPSCOPE), None)
        ratios = {
            m.label: row.better(own, m.median)
            for m in measured
            if m.tool is not Tool.STEPSCOPE and m.median is not None and own is not None
        }
        return cls(
            key=row.key,
            title=title,
            unit=row.unit,
            budget=row.budget,
            more_is_better=row.more_is_better,
            met=None if own is None else row.met(own),
            cited=row.cited,
            measured=tuple(measured),
            ratios={label: ratio for label, ratio in ratios.items() if ratio is not None},
        )

    @property
    def own(self) -> Measured | None:
        """stepscope's part."""
        return next((m for m in self.measured if m.tool is Tool.STEPSCOPE), None)

    @property
    def peers(self) -> list[Measured]:
        """The others' parts."""
        return [m for m in self.measured if m.tool is not Tool.STEPSCOPE]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All rows of a run."""

    machine: Machine
    scale: str
    seconds: float
    """How long the run took."""
    outcomes: tuple[Outcome, ...]

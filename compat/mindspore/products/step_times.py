"""Breakdown of each step's time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.compat.mindspore.products.base import OPERATORS, in_categories, is_collective, spans, write_csv
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Block, EventBatch
from stepscope.runtime.export.run import Run
from stepscope.runtime.windows.window import Window

HEAD = ("Step", "Computing", "Communication(Not Overlapped)", "Overlapped", "Communication", "Free", "Stage", "Bubble",
        "Communication(Not Overlapped and Exclude Receive)", "Preparing")  # fmt: skip
"""Header of MindSpore 2.10; times are µs."""

Intervals = NDArray[np.int64]
"""Begins in the first column, ends in the second, in ns; disjoint and in order."""

_NONE: Intervals = np.zeros((0, 2), np.int64)


class StepTime(msgspec.Struct, frozen=True, kw_only=True):
    """One step; times in ns."""

    step: int
    computing: int
    """Covered by operators that do not communicate."""
    communication: int
    """Covered by collectives."""
    overlapped: int
    """Covered by both."""
    free: int
    """Covered by neither."""
    whole: int
    preparing: int
    """From the step's begin to its first operator."""


class StepTimes:
    """Writes `step_trace_time.csv`. Where there are no operators, the program's own spans are taken for them.

    Args:
        directory: for the file.
    """

    name = "step times"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._covered: dict[tuple[int, str], Intervals] = {}
        self._collectives: dict[int, bool] = {}
        self.rows: list[StepTime] = []
        """The steps; there when the window was finished."""

    async def open(self, run: Run) -> None:
        pass

    async def add(self, batch: EventBatch) -> None:
        events = spans(batch.events)
        operators = in_categories(events, OPERATORS)
        others = ~(operators | in_categories(events, ("task", "python_function")))
        self._add(events[operators], "operator")
        self._add(events[others], "span")

    def _add(self, events: Block, kind: str) -> None:
        communicates = np.array([self._communicates(name) for name in events["name"].tolist()], bool)
        for what, some in ((kind, events[~communicates]), ("collective", events[communicates])):
            for step in np.unique(some["step"]).tolist():
                here: Any = some[some["step"] == step]
                new = np.stack([here["ts"], here["ts"] + here["dur"]], axis=1)
                self._covered[step, what] = union(self._covered.get((step, what), _NONE), new)

    def _communicates(self, name: int) -> bool:
        if name not in self._collectives:
            self._collectives[name] = is_collective(strings.text(name))
        return self._collectives[name]

    async def finish(self, window: Window) -> tuple[Path, ...]:
        kind = "operator" if any(what == "operator" for _, what in self._covered) else "span"
        self.rows = [
            self._row(step.number, step.start_ns, step.end_ns, kind)
            for step in window.steps
            if any((step.number, what) in self._covered for what in (kind, "collective")) or kind == "span"
        ]
        if not self.rows:
            return ()
        return (write_csv(self._directory / "step_trace_time.csv", HEAD, map(_fields, self.rows)),)

    def _row(self, number: int, start: int, end: int, kind: str) -> StepTime:
        computing = clip(self._covered.get((number, kind), _NONE), start, end)
        communication = clip(self._covered.get((number, "collective"), _NONE), start, end)
        both = union(computing, communication)
        covered = length(both)
        first = int(both[0, 0]) if len(both) else start
        return StepTime(
            step=number,
            computing=length(computing),
            communication=length(communication),
            overlapped=length(computing) + length(communication) - covered,
            free=end - start - covered,
            whole=end - start,
            preparing=first - start,
        )


def _fields(row: StepTime) -> tuple[Any, ...]:
    alone = row.communication - row.overlapped
    times = (row.computing, alone, row.overlapped, row.communication, row.free, row.whole, 0, alone, row.preparing)
    return (row.step, *(f"{time / 1000:.3f}" for time in times))


def union(first: Intervals, second: Intervals) -> Intervals:
    """What either covers."""
    every = np.concatenate([first, second])
    if not len(every):
        return _NONE
    every = every[np.argsort(every[:, 0], kind="stable")]
    reach = np.maximum.accumulate(every[:, 1])
    begins = np.concatenate([[True], every[1:, 0] > reach[:-1]])
    ends = np.concatenate([np.flatnonzero(begins)[1:] - 1, [len(every) - 1]])
    return np.stack([every[begins, 0], reach[ends]], axis=1)


def clip(intervals: Intervals, start: int, end: int) -> Intervals:
    """What lies between two times."""
    cut = np.clip(intervals, start, end)
    return cut[cut[:, 1] > cut[:, 0]]


def length(intervals: Intervals) -> int:
    """Time covered."""
    return int((intervals[:, 1] - intervals[:, 0]).sum())

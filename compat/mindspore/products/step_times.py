"""Breakdown of each step's time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.analysis.span_choice import SpanChoice
from stepscope.compat.mindspore.output_files import write_csv
from stepscope.compat.mindspore.products.base import OPERATORS, Product, in_categories, is_communication, spans
from stepscope.runtime.events.record import Block, EventBatch
from stepscope.runtime.windows import step_facts
from stepscope.runtime.windows.window import Window

HEAD = ("Step", "Computing", "Communication(Not Overlapped)", "Overlapped", "Communication", "Free", "Stage", "Bubble",
        "Communication(Not Overlapped and Exclude Receive)", "Preparing")  # fmt: skip
"""Header of MindSpore 2.10; times are µs."""

Intervals = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Begins and ends in ns, disjoint and in order."""

_NONE: Intervals = (np.zeros(0, np.int64), np.zeros(0, np.int64))


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


class StepTimes(Product):
    """Writes `step_trace_time.csv`. Where there are no operators, the program's own spans stand for them."""

    name = "step times"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._covered: dict[tuple[int, str], Intervals] = {}
        self._communication = SpanChoice(is_communication)
        self.rows: list[StepTime] = []
        """The steps; there when the window was finished."""

    async def add(self, batch: EventBatch) -> None:
        events = spans(batch.events)
        operators = in_categories(events, OPERATORS)
        others = ~(operators | in_categories(events, ("task", "python_function")))
        self._add(events[operators], "operator")
        self._add(events[others], "span")

    def _add(self, events: Block, kind: str) -> None:
        communicates = self._communication.of(events)
        for what, some in ((kind, events[~communicates]), ("collective", events[communicates])):
            for step in np.unique(some["step"]).tolist():
                here: Any = some[some["step"] == step]
                known = self._covered.get((step, what), _NONE)
                self._covered[step, what] = union(known, (here["ts"], here["ts"] + here["dur"]))

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
        computing = _clip(self._covered.get((number, kind), _NONE), start, end)
        communication = _clip(self._covered.get((number, "collective"), _NONE), start, end)
        both = union(computing, communication)
        covered = length(both)
        first = int(both[0][0]) if covered else start
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


def union(first: Intervals, second: Intervals = _NONE) -> Intervals:
    """The time that one or the other covers; the intervals of each may be in any order."""
    return step_facts.union(np.concatenate((first[0], second[0])), np.concatenate((first[1], second[1])))


def length(intervals: Intervals) -> int:
    """The time that is covered, in ns."""
    return int((intervals[1] - intervals[0]).sum())


def _clip(intervals: Intervals, start: int, end: int) -> Intervals:
    begins, ends = (np.clip(times, start, end) for times in intervals)
    return begins[ends > begins], ends[ends > begins]

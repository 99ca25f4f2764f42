"""Breakdown of each step's time, and the points in it where forward begins and backward ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stepscope.analysis.tables.span_choice import SpanChoice
from stepscope.compat.mindspore.output_files import write_csv
from stepscope.compat.mindspore.products.base import OPERATORS, Product, in_categories, is_communication, spans
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.events.record import Block, EventBatch
from stepscope.runtime.export.run import Run
from stepscope.runtime.windows import step_facts
from stepscope.runtime.windows.step_facts import Phase, class_of
from stepscope.runtime.windows.window import Window

HEAD = ("Step", "Computing", "Communication(Not Overlapped)", "Overlapped", "Communication", "Free", "Stage", "Bubble",
        "Communication(Not Overlapped and Exclude Receive)", "Preparing")  # fmt: skip
"""Header of MindSpore 2.10; times are µs."""

POINTS = (
    "step_num",
    "start_point",
    "end_point",
    "total",
    "fp_point",
    "bp_point",
    "iteration_interval",
    "fp_and_bp",
    "tail",
)
FORWARD_POINTS = ("step_num", "start_point", "end_point", "total", "fp_point", "iteration_interval", "fp")
"""Headers of older versions of MindSpore (mindspore/profiler/parser/step_trace_parser.py), with backward and without."""
DATA_OR_OPTIMIZER, FORWARD, BACKWARD = "data or optimizer", "forward", "backward"
"""Keys of `_covered`: the time of these phases, by which points are found."""
TICK_NS: Final = 10
"""The unit of times in `step_trace_raw_<rank>_detail_time.csv`."""

Intervals = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Begins and ends in ns, disjoint and in order."""

_NONE: Intervals = (np.zeros(0, np.int64), np.zeros(0, np.int64))


class StepTimes(Product):
    """Writes `step_trace_time.csv`, where the program's own spans stand for operators if there are none, and
    `step_trace_raw_<rank>_detail_time.csv` of the steps that have a forward part."""

    name = "step times"

    def __init__(self, directory: Path, rank: int) -> None:
        self._directory, self._rank = directory, rank
        self._anchor = ClockAnchor(0, 0, 0)
        self._covered: dict[tuple[int, str], Intervals] = {}
        self._communication = SpanChoice(is_communication)
        self._phases = {
            DATA_OR_OPTIMIZER: SpanChoice(_is_of(Phase.DATA, Phase.OPTIMIZER)),
            FORWARD: SpanChoice(_is_of(Phase.FORWARD)),
            BACKWARD: SpanChoice(_is_of(Phase.BACKWARD)),
        }

    async def open(self, run: Run) -> None:
        self._anchor = run.anchor

    async def add(self, batch: EventBatch) -> None:
        events = spans(batch.events)
        operators = in_categories(events, OPERATORS)
        others = ~(operators | in_categories(events, ("task", "python_function")))
        self._add(events[operators], "operator")
        self._add(events[others], "span")
        for phase, choice in self._phases.items():
            self._cover(events[choice.of(events)], phase)

    def _add(self, events: Block, kind: str) -> None:
        communicates = self._communication.of(events)
        self._cover(events[~communicates], kind)
        self._cover(events[communicates], "collective")

    def _cover(self, events: Block, what: str) -> None:
        for step in np.unique(events["step"]).tolist():
            here: Any = events[events["step"] == step]
            before = self._covered.get((step, what), _NONE)
            self._covered[step, what] = union(before, (here["ts"], here["ts"] + here["dur"]))

    async def finish(self, window: Window) -> tuple[Path, ...]:
        kind = "operator" if any(what == "operator" for _, what in self._covered) else "span"
        rows = [
            self._row(step.number, step.start_ns, step.end_ns, kind)
            for step in window.steps
            if any((step.number, what) in self._covered for what in (kind, "collective")) or kind == "span"
        ]
        if not rows:
            return ()
        files = [write_csv(self._directory / "step_trace_time.csv", HEAD, rows)]
        backward = any(what == BACKWARD for _, what in self._covered)
        points = list(self._points(window, backward=backward))
        if points:
            # Doubles do not hold ticks of Unix time.
            average = ["-", *(sum(column) // len(points) for column in list(zip(*points, strict=True))[1:])]
            path = self._directory / f"step_trace_raw_{self._rank}_detail_time.csv"
            files.append(write_csv(path, POINTS if backward else FORWARD_POINTS, [*points, average]))
        return tuple(files)

    def _points(self, window: Window, *, backward: bool) -> Iterator[list[int]]:
        """The rows of the steps that have all points, in ticks of Unix time."""
        for step in window.steps:
            others, fp, bp = (
                _clip(self._covered.get((step.number, phase), _NONE), step.start_ns, step.end_ns)
                for phase in self._phases
            )
            # Operators that a loader or an optimizer runs in the training thread are not forward.
            before = np.searchsorted(others[0], fp[0], side="right") - 1
            begins = fp[0][(before < 0) | (np.append(others[1], 0)[before] <= fp[0])]
            if not len(begins) or (backward and not len(bp[1])):
                continue
            start, end, first = (
                self._anchor.wall(int(ns)) // TICK_NS for ns in (step.start_ns, step.end_ns, begins[0])
            )
            if not backward:
                yield [step.number, start, end, end - start, first, first - start, end - first]
                continue
            last = self._anchor.wall(int(bp[1][-1])) // TICK_NS
            yield [step.number, start, end, end - start, first, last, first - start, last - first, end - last]

    def _row(self, number: int, start: int, end: int, kind: str) -> tuple[Any, ...]:
        """A row of `HEAD`."""
        operators = _clip(self._covered.get((number, kind), _NONE), start, end)
        collectives = _clip(self._covered.get((number, "collective"), _NONE), start, end)
        both = union(operators, collectives)
        computing, communication, covered = length(operators), length(collectives), length(both)
        overlapped, alone = computing + communication - covered, covered - computing
        preparing = int(both[0][0]) - start if covered else 0
        times = (computing, alone, overlapped, communication, end - start - covered, end - start, 0, alone, preparing)
        return (number, *(f"{time / 1000:.3f}" for time in times))


def _is_of(*phases: Phase) -> Callable[[str, str], bool]:
    return lambda name, category: class_of(name, category) in phases


def union(first: Intervals, second: Intervals = _NONE) -> Intervals:
    """The time that one or the other covers; the intervals of each may be in any order."""
    return step_facts.union(np.concatenate((first[0], second[0])), np.concatenate((first[1], second[1])))


def length(intervals: Intervals) -> int:
    """The time that is covered, in ns."""
    return int((intervals[1] - intervals[0]).sum())


def _clip(intervals: Intervals, start: int, end: int) -> Intervals:
    begins, ends = (np.clip(times, start, end) for times in intervals)
    return begins[ends > begins], ends[ends > begins]

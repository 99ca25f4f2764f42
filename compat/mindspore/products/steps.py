"""Each step's time: its breakdown, the points where forward begins and backward ends, and the phases that `stepscope explain` computes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stepscope.analysis.tables.span_choice import SpanChoice
from stepscope.compat.mindspore.output_layout import write_csv, write_json
from stepscope.compat.mindspore.products.base import OPERATORS, Product, in_categories, is_communication, spans
from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.record import Block, EventBatch, Kind
from stepscope.runtime.windows.step_facts import Facts, Phase, StepFactsBuilder, class_of, covered_before, union
from stepscope.runtime.windows.step_parts import durations, in_median_step, is_uncovered, parts_of
from stepscope.runtime.windows.step_statistics import first_steps
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
        super().__init__(directory)
        self._rank = rank
        self._covered: dict[tuple[int, str], Intervals] = {}
        self._communication = SpanChoice(is_communication)
        self._phases = {
            DATA_OR_OPTIMIZER: SpanChoice(_is_of(Phase.DATA, Phase.OPTIMIZER)),
            FORWARD: SpanChoice(_is_of(Phase.FORWARD)),
            BACKWARD: SpanChoice(_is_of(Phase.BACKWARD)),
        }

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
            self._covered[step, what] = merged(before, (here["ts"], here["ts"] + here["dur"]))

    async def finish(self, window: Window) -> tuple[Path, ...]:
        kind = "operator" if any(what == "operator" for _, what in self._covered) else "span"
        rows = [
            self._row(step.number, step.start_ns, step.end_ns, kind)
            for step in self.steps_of(window)
            if any((step.number, what) in self._covered for what in (kind, "collective")) or kind == "span"
        ]
        if not rows:
            return ()
        files = [write_csv(self.directory / "step_trace_time.csv", HEAD, rows)]
        backward = any(what == BACKWARD for _, what in self._covered)
        points = list(self._points(window, backward=backward))
        if points:
            # Doubles do not hold ticks of Unix time.
            average = ["-", *(sum(column) // len(points) for column in list(zip(*points, strict=True))[1:])]
            path = self.directory / f"step_trace_raw_{self._rank}_detail_time.csv"
            files.append(write_csv(path, POINTS if backward else FORWARD_POINTS, [*points, average]))
        return tuple(files)

    def _points(self, window: Window, *, backward: bool) -> Iterator[list[int]]:
        """The rows of the steps that have all points, in ticks of Unix time."""
        for step in self.steps_of(window):
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
                self.run.anchor.wall(int(ns)) // TICK_NS for ns in (step.start_ns, step.end_ns, begins[0])
            )
            if not backward:
                yield [step.number, start, end, end - start, first, first - start, end - first]
                continue
            last = self.run.anchor.wall(int(bp[1][-1])) // TICK_NS
            yield [step.number, start, end, end - start, first, last, first - start, last - first, end - last]

    def _row(self, number: int, start: int, end: int, kind: str) -> tuple[Any, ...]:
        """A row of `HEAD`."""
        operators = _clip(self._covered.get((number, kind), _NONE), start, end)
        collectives = _clip(self._covered.get((number, "collective"), _NONE), start, end)
        both = merged(operators, collectives)
        computing, communication, covered = length(operators), length(collectives), length(both)
        overlapped, alone = computing + communication - covered, covered - computing
        preparing = int(both[0][0]) - start if covered else 0
        times = (computing, alone, overlapped, communication, end - start - covered, end - start, 0, alone, preparing)
        return (number, *(f"{time / 1000:.3f}" for time in times))


def _is_of(*phases: Phase) -> Callable[[str, str], bool]:
    return lambda name, category: class_of(name, category) in phases


def merged(first: Intervals, second: Intervals = _NONE) -> Intervals:
    """The time that one or the other covers; the intervals of each may be in any order."""
    return union(np.concatenate((first[0], second[0])), np.concatenate((first[1], second[1])))


def length(intervals: Intervals) -> int:
    """The time that is covered, in ns."""
    return int((intervals[1] - intervals[0]).sum())


def _clip(intervals: Intervals, start: int, end: int) -> Intervals:
    begins, ends = (np.clip(times, start, end) for times in intervals)
    return begins[ends > begins], ends[ends > begins]


PHASES = ("data", "forward", "backward", "communication", "optimizer")
"""Phases that have a column in every table, by their names in `stepscope explain`."""
REST = "rest"
"""The time of a step that no span covers."""
NAMED = "span: "
"""Begins the columns of the phases that the program names: the time from begin to end of its own spans, with all in them."""
MOST_NAMED = 32
"""Names of the program's spans that have a column, those with the most time."""
MEDIAN, AVERAGE, PERCENT = "median", "average", "percent"
"""The last three rows: a median step as `stepscope explain` shows it, without the first steps; the mean of all steps; and the share of it that
each phase is, in percent."""
NOT_NAMED = ("loader", "preprocess")
"""Categories of spans of the preparation of data, which name no phase of the loop."""
OPERATOR_ROWS = "MindSpore operators"
"""Prefixes of the names of the rows with MindSpore's operators."""


class StepPhases(Product):
    """Writes `step_phases.csv` and `step_phases.json`: for each step the time of each phase, then a median step, the average and percent.

    MindSpore says of its operators neither the phase nor the thread. Those of the scope `Gradients` are backward, those of an optimizer
    are the optimizer's, all others are forward; they count as the work of the thread that steps, which waits for them.
    """

    name = "step phases"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._facts = StepFactsBuilder(late=True)
        self._stepping = 0
        self._waiting: list[Block] = []
        """Operators of MindSpore that came before the first step's mark."""
        self._named: defaultdict[int, list[NDArray[np.int64]]] = defaultdict(list)
        self._own = SpanChoice(
            lambda name, category: category not in NOT_NAMED and class_of(name, category) == Phase.SPAN
        )

    async def add(self, batch: EventBatch) -> None:
        events = batch.events
        marks = events[events["kind"] == int(Kind.STEP)]
        if len(marks):
            self._stepping = int(marks["track"][0])
        rows = [track for track in np.unique(events["track"]).tolist() if _has_operators(track)]
        apart = np.isin(events["track"], rows)
        self._facts.update(events[~apart])
        if apart.any():
            self._waiting.append(events[apart].copy())
        if self._stepping:
            for block in self._waiting:
                block["track"] = self._stepping
                self._facts.update(block)
            self._waiting.clear()
        self._add_named(spans(events[~apart]))

    def _add_named(self, events: Block) -> None:
        chosen = events[self._own.of(events)]
        for name in np.unique(chosen["name"]).tolist():
            here: Any = chosen[chosen["name"] == name]
            self._named[name].append(np.stack((here["ts"], here["ts"] + here["dur"])).astype(np.int64))

    async def finish(self, window: Window) -> tuple[Path, ...]:
        facts = self._facts.finish(*(step.end_ns for step in window.steps), window=window.index)
        facts = facts[np.isin(facts["step"], [step.number for step in self.steps_of(window)])]
        if not len(facts):
            return ()
        return self._write(facts, _phases(facts), self._named_times(facts))

    def _write(
        self, facts: Facts, phases: Mapping[str, list[int]], named: Mapping[str, list[int]]
    ) -> tuple[Path, Path]:
        """Args: the steps; the ns of each phase in each step, which add up to it; those of each name of the program's own spans, which
        may overlap phases and each other."""
        steps, total = facts["step"].tolist(), durations(facts).tolist()
        columns = {"total": total, **phases, **{NAMED + name: ns for name, ns in named.items()}}
        judged = first_steps(len(facts))
        of_judged = {name: np.array(ns[judged:], np.int64) for name, ns in columns.items()}
        averages = {name: sum(ns) / len(steps) for name, ns in columns.items()}
        summaries = {MEDIAN: in_median_step(facts[judged:], of_judged), AVERAGE: averages}
        percent = {name: 100 * ns / (averages["total"] or 1.0) for name, ns in averages.items()}
        rows: list[list[Any]] = [
            [step, *(f"{column[at] / 1000:.3f}" for column in columns.values())] for at, step in enumerate(steps)
        ]
        rows += [[row, *(f"{ns / 1000:.3f}" for ns in times.values())] for row, times in summaries.items()]
        rows.append([PERCENT, *(f"{share:.2f}" for share in percent.values())])
        found = {
            "unit": "us",
            "steps": [
                {
                    "step": step,
                    "total": total[at] / 1000,
                    "phases": {name: column[at] / 1000 for name, column in phases.items()},
                    "spans": {name: column[at] / 1000 for name, column in named.items()},
                }
                for at, step in enumerate(steps)
            ],
            **{row: {name: ns / 1000 for name, ns in times.items()} for row, times in summaries.items()},
            PERCENT: percent,
        }
        return (
            write_csv(self.directory / "step_phases.csv", ["step", *(f"{name}(us)" for name in averages)], rows),
            write_json(self.directory / "step_phases.json", found),
        )

    def _named_times(self, facts: Facts) -> dict[str, list[int]]:
        found: dict[str, NDArray[np.int64]] = {}
        for name, pieces in self._named.items():
            covered = union(*np.concatenate(pieces, axis=1))
            found[strings.text(name)] = covered_before(*covered, facts["end"]) - covered_before(
                *covered, facts["begin"]
            )
        longest = sorted((name for name, ns in found.items() if ns.any()), key=lambda name: (-found[name].sum(), name))
        return {name: found[name].tolist() for name in longest[:MOST_NAMED]}


def _has_operators(track: int) -> bool:
    """Whether a row has operators of MindSpore."""
    entry = tracks.get(track)
    return entry is not None and entry.name.startswith(OPERATOR_ROWS)


def _phases(facts: Facts) -> dict[str, list[int]]:
    parts = parts_of(facts)
    nothing = np.zeros(len(facts), np.int64)
    rest = sum((ns for name, ns in parts.items() if is_uncovered(name)), nothing)
    covered = {name: ns for name, ns in parts.items() if not is_uncovered(name)}
    columns = {**dict.fromkeys(PHASES, nothing), **covered, REST: rest}
    return {name: ns.tolist() for name, ns in columns.items()}

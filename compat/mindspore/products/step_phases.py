"""Phases of each step: what the report and `stepscope explain` compute, as a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.compat.mindspore.output_files import write_csv, write_json
from stepscope.compat.mindspore.products.base import Product, spans
from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.record import Block, EventBatch, Kind
from stepscope.runtime.windows.step_facts import Facts, Phase, StepFactsBuilder, class_of, covered_before, union
from stepscope.runtime.windows.step_parts import durations, is_uncovered, parts_of
from stepscope.runtime.windows.window import Window

PHASES = ("data", "forward", "backward", "communication", "optimizer")
"""Phases that have a column in every table, by their names in `stepscope explain`."""
REST = "rest"
"""The time of a step that no span covers."""
NAMED = "span: "
"""Begins the columns of the phases that the program names: the time from begin to end of its own spans, with all in them."""
MOST_NAMED = 32
"""Names of the program's spans that have a column, those with the most time."""
AVERAGE, PERCENT = "average", "percent"
"""The last two rows: the mean of the steps, and what share of it each phase is, in percent."""
NOT_NAMED = ("loader", "preprocess")
"""Categories of spans of the preparation of data, which name no phase of the loop."""
OPERATORS = "MindSpore operators"
"""How the names of the rows begin on which the operators of MindSpore are."""


class PhaseTable(msgspec.Struct, frozen=True, kw_only=True):
    """The phases of the steps of a window. All times are ns."""

    steps: tuple[int, ...]
    totals: tuple[int, ...]
    """Duration of each step."""
    phases: Mapping[str, tuple[int, ...]]
    """By the name of a phase, its time in each step. Those of a step add up to its duration."""
    named: Mapping[str, tuple[int, ...]]
    """By the name of a span of the program, the time that spans of this name cover in each step. They may overlap phases and each
    other."""

    def averages(self) -> dict[str, float]:
        """The mean over the steps, in ns, by the name of a column."""
        count = len(self.steps)
        columns = {"total": self.totals, **self.phases, **{NAMED + name: ns for name, ns in self.named.items()}}
        return {name: sum(ns) / count for name, ns in columns.items()} if count else {}

    def shares(self) -> list[tuple[str, str, str]]:
        """Name, mean in ms and share of each column that has time, as texts for a page."""
        averages = {name: ns for name, ns in self.averages().items() if ns}
        return [(name, f"{ns / 1e6:,.3f}", f"{ns / averages['total']:.1%}") for name, ns in averages.items()]


class StepPhases(Product):
    """Writes `step_phases.csv` and `step_phases.json`: for each step the time of each phase, then the average and percent.

    MindSpore says of its operators neither the phase nor the thread. Those of the scope `Gradients` are backward, those of an optimizer
    are the optimizer's, all others are forward; they count as the work of the thread that steps, which waits for them.
    """

    name = "step phases"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._facts = StepFactsBuilder(late=True)
        self._stepping = 0
        self._waiting: list[Block] = []
        """Operators of MindSpore that came before the first step's mark."""
        self._operators: dict[int, bool] = {}
        self._named: defaultdict[int, list[NDArray[np.int64]]] = defaultdict(list)
        self._classes: dict[tuple[int, int], bool] = {}
        self.table = PhaseTable(steps=(), totals=(), phases={}, named={})
        """There when the window was finished."""

    async def add(self, batch: EventBatch) -> None:
        events = batch.events
        marks = events[events["kind"] == int(Kind.STEP)]
        if len(marks):
            self._stepping = int(marks["track"][0])
        apart = np.array([self._is_operators(track) for track in events["track"].tolist()], bool)
        self._facts.update(events[~apart])
        if apart.any():
            self._waiting.append(events[apart].copy())
        if self._stepping:
            for block in self._waiting:
                block["track"] = self._stepping
                self._facts.update(block)
            self._waiting.clear()
        self._add_named(spans(events[~apart]))

    def _is_operators(self, track: int) -> bool:
        if track not in self._operators:
            entry = tracks.get(track)
            self._operators[track] = entry is not None and entry.name.startswith(OPERATORS)
        return self._operators[track]

    def _add_named(self, events: Block) -> None:
        own = [self._is_named(*key) for key in zip(events["name"].tolist(), events["category"].tolist(), strict=True)]
        chosen = events[np.array(own, bool)]
        for name in np.unique(chosen["name"]).tolist():
            here: Any = chosen[chosen["name"] == name]
            self._named[name].append(np.stack((here["ts"], here["ts"] + here["dur"])).astype(np.int64))

    def _is_named(self, name: int, category: int) -> bool:
        key = name, category
        if key not in self._classes:
            text = strings.text(category)
            self._classes[key] = text not in NOT_NAMED and class_of(strings.text(name), text) == Phase.SPAN
        return self._classes[key]

    async def finish(self, window: Window) -> tuple[Path, ...]:
        facts = self._facts.finish(*(step.end_ns for step in window.steps), window=window.index)
        facts = facts[np.isin(facts["step"], [step.number for step in window.steps])]
        if not len(facts):
            return ()
        self.table = PhaseTable(
            steps=tuple(facts["step"].tolist()),
            totals=tuple(durations(facts).tolist()),
            phases=_phases(facts),
            named=self._named_times(facts),
        )
        return _write(self._directory, self.table)

    def _named_times(self, facts: Facts) -> dict[str, tuple[int, ...]]:
        found: dict[str, NDArray[np.int64]] = {}
        for name, pieces in self._named.items():
            covered = union(*np.concatenate(pieces, axis=1))
            found[strings.text(name)] = covered_before(*covered, facts["end"]) - covered_before(
                *covered, facts["begin"]
            )
        longest = sorted((name for name, ns in found.items() if ns.any()), key=lambda name: (-found[name].sum(), name))
        return {name: tuple(found[name].tolist()) for name in longest[:MOST_NAMED]}


def _phases(facts: Facts) -> dict[str, tuple[int, ...]]:
    parts = parts_of(facts)
    nothing = np.zeros(len(facts), np.int64)
    rest = sum((ns for name, ns in parts.items() if is_uncovered(name)), nothing)
    covered = {name: ns for name, ns in parts.items() if not is_uncovered(name)}
    columns = {**dict.fromkeys(PHASES, nothing), **covered, REST: rest}
    return {name: tuple(ns.tolist()) for name, ns in columns.items()}


def _write(directory: Path, table: PhaseTable) -> tuple[Path, Path]:
    averages = table.averages()
    percent = {name: 100 * ns / (averages["total"] or 1.0) for name, ns in averages.items()}
    columns = [table.totals, *table.phases.values(), *table.named.values()]
    rows: list[list[Any]] = [
        [step, *(f"{column[at] / 1000:.3f}" for column in columns)] for at, step in enumerate(table.steps)
    ]
    rows.append([AVERAGE, *(f"{ns / 1000:.3f}" for ns in averages.values())])
    rows.append([PERCENT, *(f"{share:.2f}" for share in percent.values())])
    found = {
        "unit": "us",
        "steps": [
            {
                "step": step,
                "total": table.totals[at] / 1000,
                "phases": {name: column[at] / 1000 for name, column in table.phases.items()},
                "spans": {name: column[at] / 1000 for name, column in table.named.items()},
            }
            for at, step in enumerate(table.steps)
        ],
        AVERAGE: {name: ns / 1000 for name, ns in averages.items()},
        PERCENT: percent,
    }
    return (
        write_csv(directory / "step_phases.csv", ["step", *(f"{name}(us)" for name in averages)], rows),
        write_json(directory / "step_phases.json", found),
    )

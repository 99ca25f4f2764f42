"""Phases of each step: what the report and `stepscope explain` compute, as a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
        return self._write(facts, _phases(facts), self._named_times(facts))

    def _write(
        self, facts: Facts, phases: Mapping[str, list[int]], named: Mapping[str, list[int]]
    ) -> tuple[Path, Path]:
        """Args: the steps; the ns of each phase in each step, which add up to it; those of each name of the program's own spans, which
        may overlap phases and each other."""
        steps, total = facts["step"].tolist(), durations(facts).tolist()
        columns = {"total": total, **phases, **{NAMED + name: ns for name, ns in named.items()}}
        averages = {name: sum(ns) / len(steps) for name, ns in columns.items()}
        percent = {name: 100 * ns / (averages["total"] or 1.0) for name, ns in averages.items()}
        rows: list[list[Any]] = [
            [step, *(f"{column[at] / 1000:.3f}" for column in columns.values())] for at, step in enumerate(steps)
        ]
        rows.append([AVERAGE, *(f"{ns / 1000:.3f}" for ns in averages.values())])
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
            AVERAGE: {name: ns / 1000 for name, ns in averages.items()},
            PERCENT: percent,
        }
        return (
            write_csv(self._directory / "step_phases.csv", ["step", *(f"{name}(us)" for name in averages)], rows),
            write_json(self._directory / "step_phases.json", found),
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


def _phases(facts: Facts) -> dict[str, list[int]]:
    parts = parts_of(facts)
    nothing = np.zeros(len(facts), np.int64)
    rest = sum((ns for name, ns in parts.items() if is_uncovered(name)), nothing)
    covered = {name: ns for name, ns in parts.items() if not is_uncovered(name)}
    columns = {**dict.fromkeys(PHASES, nothing), **covered, REST: rest}
    return {name: ns.tolist() for name, ns in columns.items()}

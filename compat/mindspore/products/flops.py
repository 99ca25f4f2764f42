"""Floating-point operations of operators and steps, and their rate as a share of the declared peak."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from stepscope.analysis.findings import OperatorFlops
from stepscope.analysis.tables.flops import FlopsTable, peak_of, utilization_of
from stepscope.compat.mindspore.output_layout import write_json, write_text
from stepscope.compat.mindspore.products.base import Product
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.windows.window import Window

HEAD = ("op_full_name", "MFLOPs(10^6)", "GFLOPS(10^9)", "FLOPS utilization(%)")
STEPS = ("steps", "FLOPS_Utilization %")
"""Headers of MindSpore up to 2.2 (mindspore/profiler/parser/flops_parser.py)."""


class Flops(Product):
    """Writes `flops_<rank>.txt`, `flops_summary_<rank>.json`, with a peak `flops_utilization_step_<rank>.json`, and, where names have scopes,
    `flops_scope_<rank>.json`.

    An operator has the operations of one run, and the rate of its runs on the host. The summary has those of one step, in the
    mean, and the rate over the time of the steps. The file of steps is a table with commas, as MindSpore's of that name.
    """

    name = "flops"

    def __init__(self, directory: Path, rank: int, peak: float | None) -> None:
        super().__init__(directory)
        self.table = FlopsTable()
        self.steps: list[tuple[int, int, int]] = []
        """Number, operations and ns of each step; set when the window is finished."""
        self.peak = peak
        self._rank = rank

    async def add(self, batch: EventBatch) -> None:
        self.table.update(batch)

    async def finish(self, window: Window) -> tuple[Path, ...]:
        rows = self.table.rows()
        if not rows:
            return ()
        self.peak = self.peak or peak_of(self.run.metadata())
        flops = self.table.by_step
        self.steps = [
            (step.number, flops.get((window.index, step.number), 0), step.end_ns - step.start_ns)
            for step in self.steps_of(window)
        ]
        operators = [
            (row.name, f"{row.flops / row.count / 1e6:.6g}", _rate(row.flops, row.ns), self._share(row.flops, row.ns))
            for row in rows
        ]
        files = [self._table(f"flops_{self._rank}.txt", HEAD, operators), self._summary()]
        if self.peak:
            shares = [(str(number), self._share(flops, ns)) for number, flops, ns in self.steps]
            files.append(self._table(f"flops_utilization_step_{self._rank}.json", STEPS, shares))
        scopes = _scopes(rows)
        if scopes["data"]["links"]:
            files.append(write_json(self.directory / f"flops_scope_{self._rank}.json", scopes))
        return tuple(files)

    def _summary(self) -> Path:
        flops, ns = sum(flops for _, flops, _ in self.steps), sum(ns for *_, ns in self.steps)
        share = utilization_of(flops, ns, self.peak)
        found = {
            "FLOPs": round(flops / 1e6 / max(len(self.steps), 1), 3),
            "FLOPS": round(flops / ns, 3) if ns else 0.0,
            "FLOPS_Utilization": None if share is None else round(100 * share, 3),
        }
        return write_json(self.directory / f"flops_summary_{self._rank}.json", found)

    def _table(self, name: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Path:
        return write_text(self.directory / name, "".join(f"{', '.join(row)}\n" for row in (head, *rows)))

    def _share(self, flops: int, ns: int) -> str:
        """The share in percent; empty if it is not known."""
        share = utilization_of(flops, ns, self.peak)
        return "" if share is None else f"{100 * share:.6g}"


def _scopes(rows: Iterable[OperatorFlops]) -> dict[str, Any]:
    """The MFLOPs of one run of each operator, summed by scope, as a Sankey diagram: scopes of names such as `Default/network/MatMul-op1`. A scope
    has its level and the first scope in its name, as the same name may be at several places."""
    links: defaultdict[tuple[str, str], float] = defaultdict(float)
    deepest = 0
    for row in rows:
        scopes = row.name.split("/")[:-1]
        deepest = max(deepest, len(scopes))
        top = "recompute_Gradients" if row.name.startswith("Gradients/recompute_Default") else "".join(scopes[:1])
        inner = (f"{scope}({level}_{top})" for level, scope in enumerate(scopes[1:], 1))
        for link in itertools.pairwise(("Total", *scopes[:1], *inner)):
            links[link] += row.flops / row.count / 1e6
    names = dict.fromkeys(name for link in links for name in link)
    found = [
        {"source": source, "target": target, "value": round(value, 3)} for (source, target), value in links.items()
    ]
    return {"data": {"nodes": [{"name": name} for name in names], "links": found}, "max_scope_num": deepest}


def _rate(flops: int, ns: int) -> str:
    return f"{flops / ns:.6g}" if ns else ""

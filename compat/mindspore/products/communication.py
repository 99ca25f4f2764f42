"""Communication in each step: its duration, the waiting for other ranks, and its bandwidth."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.analysis.collectives import UNKNOWN, CollectiveRun, CollectiveTable, Key, wait_of
from stepscope.compat.mindspore.output_files import write_json
from stepscope.compat.mindspore.products.base import Product, is_communication, microseconds
from stepscope.compat.mindspore.products.step_times import Intervals, length, union
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.export.run import Run
from stepscope.runtime.windows.window import Window

POINT_TO_POINT = ("send", "recv", "receive")
"""Parts of names, in small letters, of what passes between two ranks only."""

TOTAL = "Total Op Info"
"""MindSpore's name for the sum of a group: the time that any of it ran."""

MEGABYTE = 1e6
_Runs = list[tuple[CollectiveRun, int | None]]
"""Each with the ns in it that were waiting for other ranks; `None` if that is not known."""


class Communication(Product):
    """Writes `communication.json`, with MindSpore's keys: by step, by `p2p` or `collective`, by operator; and
    `communication_matrix.json` of what was sent from one rank to another, if that is known.

    An operator has its runs, the begin of the first as Unix time, and the time from the begin to the end of each. Waiting
    needs the other ranks: `fastest` has the ns of each collective on the rank that was in it for the shortest time. Bytes
    need shapes, or are declared. Keys of unknown facts are left out.
    """

    name = "communication"

    def __init__(self, directory: Path, fastest: Mapping[Key, int]) -> None:
        self._directory, self._fastest = directory, fastest
        self._anchor = ClockAnchor(0, 0, 0)
        self._table = CollectiveTable(is_communication)

    async def open(self, run: Run) -> None:
        self._anchor = run.anchor

    async def add(self, batch: EventBatch) -> None:
        self._table.update(batch)

    async def finish(self, window: Window) -> tuple[Path, ...]:
        steps: defaultdict[int, defaultdict[str, _Runs]] = defaultdict(lambda: defaultdict(list))
        for key, run in self._table.keyed().items():
            steps[run.step][run.name].append((run, wait_of(key, run, self._fastest)))
        if not steps:
            return ()
        found = {f"step{step}": self._of_step(names) for step, names in sorted(steps.items())}
        files = [write_json(self._directory / "communication.json", found)]
        matrix = {f"step{step}": _links(names) for step, names in sorted(steps.items())}
        if any(groups["p2p"] or groups["collective"] for groups in matrix.values()):
            files.append(write_json(self._directory / "communication_matrix.json", matrix))
        return tuple(files)

    def _of_step(self, names: Mapping[str, _Runs]) -> dict[str, Any]:
        groups: dict[str, dict[str, Any]] = {"p2p": {}, "collective": {}}
        whole: dict[str, _Runs] = {"p2p": [], "collective": []}
        for name, runs in sorted(names.items()):
            group = _group(name)
            groups[group][name] = self._info(runs, sum(run.dur for run, _ in runs))
            whole[group] += runs
        for group, runs in whole.items():
            if runs:
                covered = length(union(_intervals(run for run, _ in runs)))
                groups[group][TOTAL] = self._info(runs, covered)
        return groups

    def _info(self, runs: _Runs, elapsed: int) -> dict[str, Any]:
        times: dict[str, Any] = {
            "Start Timestamp(us)": microseconds(self._anchor.wall(min(run.ts for run, _ in runs))),
            "Elapse Time(ms)": elapsed / 1e6,
            "Occurrences": len(runs),
        }
        waits = [wait for _, wait in runs if wait is not None]
        transit = elapsed
        if len(waits) == len(runs):
            # Runs that overlap wait together.
            waited = min(sum(waits), elapsed)
            transit = elapsed - waited
            times |= {
                "Transit Time(ms)": transit / 1e6,
                "Wait Time(ms)": waited / 1e6,
                "Wait Time Ratio": round(waited / elapsed, 4) if elapsed else 0,
            }
        sizes = [run.bytes for run, _ in runs]
        if UNKNOWN in sizes or not any(sizes):
            return {"Communication Time Info": times}
        bandwidth = _bandwidth(sum(sizes), transit)
        distribution: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0.0])
        for run, wait in runs:
            each = distribution[str(run.bytes / MEGABYTE)]
            each[0] += 1
            each[1] += (run.dur - (wait or 0)) / 1e6
        info = {**bandwidth, "Size Distribution": dict(distribution)}
        return {"Communication Time Info": times, "Communication Bandwidth Info": {TRANSPORT: info}}


TRANSPORT = "ALL"
"""In place of MindSpore's kinds of links: by which of them the bytes passed is not known on the host."""


def _bandwidth(size: int, transit: int) -> dict[str, float]:
    return {
        "Transit Size(MB)": size / MEGABYTE,
        "Transit Time(ms)": transit / 1e6,
        "Bandwidth(GB/s)": round(size / transit, 4) if transit else 0,
    }


def _links(names: Mapping[str, _Runs]) -> dict[str, Any]:
    """Transfers between two ranks, summed by name and link."""
    groups: dict[str, dict[str, Any]] = {"p2p": {}, "collective": {}}
    for name, runs in sorted(names.items()):
        links: defaultdict[str, _Runs] = defaultdict(list)
        for run, wait in runs:
            if run.peer and run.bytes != UNKNOWN:
                links[run.peer].append((run, wait))
        if links:
            groups[_group(name)][f"{name}-total"] = {
                link: {"Transport Type": TRANSPORT}
                | _bandwidth(sum(run.bytes for run, _ in some), sum(run.dur - (wait or 0) for run, wait in some))
                for link, some in sorted(links.items())
            }
    return groups


def _group(name: str) -> str:
    lower = name.lower()
    return "p2p" if any(part in lower for part in POINT_TO_POINT) else "collective"


def _intervals(runs: Iterable[CollectiveRun]) -> Intervals:
    begins, ends = np.array([(run.ts, run.ts + run.dur) for run in runs], np.int64).T
    return begins, ends

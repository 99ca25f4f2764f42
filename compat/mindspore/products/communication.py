"""Communication in each step: its duration, the waiting for other ranks, and its bandwidth; and the parallel layout."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.analysis.tables.collectives import UNKNOWN, CollectiveRun, CollectiveTable, Key, wait_of
from stepscope.backends.parallel_layout import DECLARED, of_torch
from stepscope.compat.mindspore.output_layout import write_csv, write_json
from stepscope.compat.mindspore.products.base import Product, is_communication, microseconds
from stepscope.compat.mindspore.products.steps import Intervals, length, merged
from stepscope.runtime.events.json_values import plain
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.windows.window import Window

POINT_TO_POINT = ("send", "recv", "receive")
"""Parts of names, in small letters, of what passes between two ranks only."""

TOTAL = "Total Op Info"
"""MindSpore's name for the sum of a group: the time that any of it ran."""

HCCL = ("step_num", "communication_cost", "wait_cost", "link_info", "communication_operator_cost")
"""Header of older versions of MindSpore (mindspore/profiler/parser/hccl_parser.py). Times are ms; a link has ms, kB and kB/s. The last
two columns are JSON."""

MEGABYTE = 1e6
_Runs = list[tuple[CollectiveRun, int | None]]
"""Each with the ns in it that were waiting for other ranks; `None` if that is not known."""


class Communication(Product):
    """Writes `communication.json`, with MindSpore's keys: by step, by `p2p` or `collective`, by operator; `hccl_raw_<rank>.csv`, the same as
    older versions of MindSpore have it; and `communication_matrix.json` of what was sent from one rank to another, if that is known.

    An operator has its runs, the begin of the first as Unix time, and the time from the begin to the end of each. Waiting
    needs the other ranks: `fastest` has the ns of each collective on the rank that was in it for the shortest time. Bytes
    need shapes, or are declared. Keys of unknown facts are left out.
    """

    name = "communication"

    def __init__(self, directory: Path, rank: int, fastest: Mapping[Key, int]) -> None:
        super().__init__(directory)
        self._rank, self._fastest = rank, fastest
        self._table = CollectiveTable(is_communication)

    async def add(self, batch: EventBatch) -> None:
        self._table.update(batch)

    async def finish(self, window: Window) -> tuple[Path, ...]:
        steps: defaultdict[int, defaultdict[str, _Runs]] = defaultdict(lambda: defaultdict(list))
        for key, run in self._table.keyed().items():
            steps[run.step][run.name].append((run, wait_of(key, run, self._fastest)))
        if not steps:
            return ()
        found = {f"step{step}": self._of_step(names) for step, names in sorted(steps.items())}
        files = [write_json(self.directory / "communication.json", found)]
        files.append(write_csv(self.directory / f"hccl_raw_{self._rank}.csv", HCCL, _hccl_rows(steps)))
        matrix = {f"step{step}": _links(names) for step, names in sorted(steps.items())}
        if any(groups["p2p"] or groups["collective"] for groups in matrix.values()):
            files.append(write_json(self.directory / "communication_matrix.json", matrix))
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
                covered = length(merged(_intervals(run for run, _ in runs)))
                groups[group][TOTAL] = self._info(runs, covered)
        return groups

    def _info(self, runs: _Runs, elapsed: int) -> dict[str, Any]:
        times: dict[str, Any] = {
            "Start Timestamp(us)": microseconds(self.run.anchor.wall(min(run.ts for run, _ in runs))),
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
"""The kind of link in tables: the host does not know by which link the bytes passed."""


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
        links = _by_link(runs)
        if links:
            groups[_group(name)][f"{name}-total"] = {
                link: {"Transport Type": TRANSPORT} | _bandwidth(size, transit) for link, size, transit in links
            }
    return groups


def _by_link(runs: _Runs) -> list[tuple[str, int, int]]:
    """Each link between two ranks, with the bytes that passed and the ns without waiting."""
    links: defaultdict[str, _Runs] = defaultdict(list)
    for run, wait in runs:
        if run.peer and run.bytes != UNKNOWN:
            links[run.peer].append((run, wait))
    return [
        (link, sum(run.bytes for run, _ in some), sum(run.dur - (wait or 0) for run, wait in some))
        for link, some in sorted(links.items())
    ]


def _hccl_rows(steps: Mapping[int, Mapping[str, _Runs]]) -> Iterator[list[Any]]:
    """A row for each step, and the average."""
    names: defaultdict[str, list[_Runs]] = defaultdict(list)
    for step, found in sorted(steps.items()):
        operators = {name: [str(step), *_costs([runs])] for name, runs in sorted(found.items())}
        yield _hccl_row(step, _costs([_all(found)]), operators)
        for name, runs in found.items():
            names[name].append(runs)
    averages = {name: ["-", *_costs(runs)] for name, runs in sorted(names.items())}
    yield _hccl_row("-", _costs([_all(found) for found in steps.values()]), averages)


def _all(names: Mapping[str, _Runs]) -> _Runs:
    return [each for runs in names.values() for each in runs]


def _hccl_row(step: int | str, costs: list[Any], operators: Mapping[str, list[Any]]) -> list[Any]:
    cost, wait, links = costs
    return [step, cost, wait, json.dumps(links), json.dumps(operators)]


def _costs(steps: list[_Runs]) -> list[Any]:
    """The mean over steps of the time without waiting, as far as that is known, of the waiting, or `None`, and of each link."""
    runs = [each for found in steps for each in found]
    waits = [wait for _, wait in runs if wait is not None]
    wait = sum(waits) if len(waits) == len(runs) else None
    scale = 1e6 * len(steps)
    links = {
        link: {TRANSPORT: [transit / scale, size / 1e3 / len(steps), size / transit * 1e6 if transit else 0]}
        for link, size, transit in _by_link(runs)
    }
    return [(sum(run.dur for run, _ in runs) - (wait or 0)) / scale, None if wait is None else wait / scale, links]


def _group(name: str) -> str:
    lower = name.lower()
    return "p2p" if any(part in lower for part in POINT_TO_POINT) else "collective"


def _intervals(runs: Iterable[CollectiveRun]) -> Intervals:
    begins, ends = np.array([(run.ts, run.ts + run.dur) for run in runs], np.int64).T
    return begins, ends


class ParallelLayoutFile(Product):
    """Writes `parallel_strategy_<rank>.json` if the job has several ranks. Sizes and groups are there as far as the program declared
    them or a framework knew them: several ranks alone do not say that they are data-parallel.
    """

    name = "parallel layout"

    def __init__(self, directory: Path, rank: int) -> None:
        super().__init__(directory)
        self._rank = rank

    async def finish(self, window: Window) -> tuple[Path, ...]:
        run = self.run
        if run.world_size is None or run.world_size < 2:
            return ()
        facts = {
            "rank_id": self._rank,
            "rank_size": run.world_size,
            "job": run.job,
            "host": run.host,
            "layout": window.metadata.get(DECLARED) or of_torch(window.metadata),
        }
        return (write_json(self.directory / f"parallel_strategy_{self._rank}.json", plain(facts)),)

"""Communication in each step, and its duration."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.compat.mindspore.products.base import is_collective, microseconds, spans
from stepscope.compat.mindspore.products.step_times import Intervals, length, union
from stepscope.exporters.output import whole_file
from stepscope.runtime.events import strings
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.export.run import Run
from stepscope.runtime.windows.window import Window

POINT_TO_POINT = ("send", "recv", "receive")
"""Parts of names, in small letters, of what passes between two ranks only."""

TOTAL = "Total Op Info"
"""MindSpore's name for the sum of a group: the time that any of it ran."""


class Communication:
    """Writes `communication.json`, with MindSpore's keys: by step, by `p2p` or `collective`, by operator.

    Of an operator there are its runs, the begin of the first as Unix time, and the time from the begin to the end of each.
    How much of that was waiting for others, and how many bytes passed, the program's side of it does not know.

    Args:
        directory: for the file.
    """

    name = "communication"

    def __init__(self, directory: Path) -> None:
        self._path = directory / "communication.json"
        self._anchor = ClockAnchor(0, 0, 0)
        self._known: dict[int, str | None] = {}
        self._runs: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)

    async def open(self, run: Run) -> None:
        self._anchor = run.anchor

    async def add(self, batch: EventBatch) -> None:
        events = spans(batch.events)
        events = events[np.array([self._group(name) is not None for name in events["name"].tolist()], bool)]
        columns = (events[field].tolist() for field in ("step", "name", "ts", "dur"))
        for step, name, begin, duration in zip(*columns, strict=True):
            self._runs[step, name].append((begin, begin + duration))

    async def finish(self, window: Window) -> tuple[Path, ...]:
        if not self._runs:
            return ()
        found: dict[str, dict[str, Any]] = {}
        for step in sorted({step for step, _ in self._runs}):
            groups: dict[str, dict[str, Any]] = {"p2p": {}, "collective": {}}
            whole: dict[str, list[tuple[int, int]]] = {"p2p": [], "collective": []}
            for (_, name), runs in sorted(item for item in self._runs.items() if item[0][0] == step):
                group = self._group(name)
                assert group is not None
                groups[group][strings.text(name)] = self._info(runs, sum(end - begin for begin, end in runs))
                whole[group] += runs
            for group, runs in whole.items():
                if runs:
                    groups[group][TOTAL] = self._info(runs, length(union(_intervals(runs), _intervals([]))))
            found[f"step{step}"] = groups
        text = json.dumps(found, indent=4, ensure_ascii=False)
        with whole_file(self._path) as place:
            place.write_text(text + "\n", encoding="utf-8", errors="backslashreplace")  # noqa: ASYNC240
        return (self._path,)

    def _info(self, runs: list[tuple[int, int]], elapsed: int) -> dict[str, Any]:
        return {
            "Communication Time Info": {
                "Start Timestamp(us)": microseconds(self._anchor.wall(min(runs)[0])),
                "Elapse Time(ms)": elapsed / 1e6,
                "Occurrences": len(runs),
            }
        }

    def _group(self, name: int) -> str | None:
        """`p2p`, `collective`, or `None` for what does not communicate."""
        if name not in self._known:
            text = strings.text(name)
            lower = text.lower()
            kind = "p2p" if any(part in lower for part in POINT_TO_POINT) else "collective"
            self._known[name] = kind if is_collective(text) else None
        return self._known[name]


def _intervals(runs: list[tuple[int, int]]) -> Intervals:
    return np.array(runs, np.int64).reshape(-1, 2)

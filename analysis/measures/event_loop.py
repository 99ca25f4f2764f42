"""Event loops of asyncio: when each task ran, when it was ready and another ran, and when it waited."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from typing import Any

import numpy as np

from stepscope.analysis.findings import TaskTimes
from stepscope.analysis.tables.rank_summary import RankSummary, TaskRun
from stepscope.runtime.events import tracks
from stepscope.runtime.windows.step_facts import Times, union

TURN_NS = 200_000
"""The longest time that a loop takes from one task to the next. If no task runs for longer than that, none is ready."""


class Loop:
    """The tasks of one loop, and the stretches in which they ran, between two waits, or in which a long callback ran, in order
    of time."""

    def __init__(
        self, tasks: list[TaskRun], waits: dict[int, list[tuple[int, int]]], callbacks: list[TaskRun] | None = None
    ) -> None:
        self.tasks = tasks
        self.callbacks = callbacks or []
        found = [(each.ts, each.ts + each.dur, each.name) for each in self.callbacks]
        self._waits: list[tuple[int, int, str]] = []
        for task in tasks:
            at, end = task.ts, task.ts + task.dur
            row = waits.get(task.track, [])
            # One wait of a task ends before the next begins.
            for index in range(max(bisect_left(row, (at, 0)) - 1, 0), len(row)):
                first, last = row[index]
                if first >= end:
                    break
                if last <= at:
                    continue
                self._waits.append((max(first, task.ts), min(last, end), task.name))
                if first > at:
                    found.append((at, first, task.name))
                at = max(at, last)
            if at < end:
                found.append((at, end, task.name))
        found.sort()
        self.begin: Times = np.array([each[0] for each in found], np.int64)
        self.end: Times = np.array([each[1] for each in found], np.int64)
        self.names = [each[2] for each in found]

    @property
    def length(self) -> int:
        """ns from the begin of the first task or callback to the end of the last one."""
        return length_of(self.tasks + self.callbacks)

    def ready(self) -> list[tuple[int, int, str]]:
        """When tasks were ready to run, at most, before they ran again: begin, end, and the name of the task.

        A task that is ready runs as soon as no other does. So if it was ready, it became so after the loop last had nothing to do.
        """
        if not len(self.begin):
            return []
        busy, until = union(self.begin, self.end + TURN_NS)
        found: list[tuple[int, int, str]] = []
        for begin, end, name in self._waits:
            at = int(np.searchsorted(busy, end, side="left")) - 1
            if at >= 0 and until[at] >= end:
                found.append((max(begin, int(busy[at])), end, name))
        return found

    def times(self) -> list[TaskTimes]:
        """The times of tasks by their names, those first that ran or were ready longest."""
        count = Counter(task.name for task in self.tasks)
        running, waiting, ready = Counter[str](), Counter[str](), Counter[str]()
        for name, took in zip(self.names, (self.end - self.begin).tolist(), strict=True):
            running[name] += took
        for begin, end, name in self._waits:
            waiting[name] += end - begin
        for begin, end, name in self.ready():
            ready[name] += end - begin
        made = [
            TaskTimes(name=name, count=n, running=running[name], ready=ready[name], waiting=waiting[name] - ready[name])
            for name, n in count.items()
        ]
        return sorted(made, key=lambda each: -(each.running + each.ready))


def loops_of(rank: RankSummary) -> list[Loop]:
    """The loops of a process, the one with most tasks first."""
    waits: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for ts, dur, track in rank.suspended:
        for at, length, row in zip(ts.tolist(), dur.tolist(), track.tolist(), strict=True):
            waits[row].append((at, at + length))
    for each in waits.values():
        each.sort()
    by_thread: dict[Any, list[TaskRun]] = defaultdict(list)
    for task in rank.tasks:
        row = tracks.get(task.track)
        by_thread[None if row is None else row.parent].append(task)
    callbacks: dict[Any, list[TaskRun]] = defaultdict(list)
    for callback in rank.callbacks:
        callbacks[None if tracks.get(callback.track) is None else callback.track].append(callback)
    found = [Loop(by_thread.get(row, []), waits, callbacks.get(row)) for row in {**by_thread, **callbacks}]
    return sorted(found, key=lambda loop: -len(loop.tasks))


def length_of(tasks: list[TaskRun]) -> int:
    """ns from the begin of the first of these to the end of the last; 0 if there are none."""
    return max(task.ts + task.dur for task in tasks) - min(task.ts for task in tasks) if tasks else 0

"""How many processors a process and its children would use if they had them: time on processors and time of waiting for one."""

from __future__ import annotations

import os

from stepscope.runtime import _core, clock, strings, tracks

CATEGORY = "processor demand"
OWN = "this process"
CHILDREN = "child processes"
PROCESSORS = "processors"
MOST_PROCESSES = 64
MOST_THREADS = 256
"""Threads of children that are read each time; reading one takes about 10 µs."""


class ProcessorDemand:
    """Counters that grow by the ns of demand; of processes that end, what was read last stays in them."""

    def __init__(self) -> None:
        self._taken: dict[str, int] = {}
        self._sums = {OWN: 0, CHILDREN: 0}

    def record(self) -> None:
        """Reads the schedstat of every thread, and records the sums. Where there is none, nothing is recorded."""
        before, self._taken = self._taken, {}
        self._add(OWN, "self", before)
        if not self._taken:
            return
        left = MOST_THREADS
        for pid in children_of("self"):
            left -= self._add(CHILDREN, str(pid), before)
            if left <= 0:
                break
        now, track, category = clock.now(), tracks.process(), strings.category(CATEGORY)
        for name, value in (*self._sums.items(), (PROCESSORS, processors())):
            _core.put(True, strings.intern(name), category, track, now, float(value), b"")

    def _add(self, whose: str, process: str, before: dict[str, int]) -> int:
        count = 0
        for tid in _listed(f"/proc/{process}/task"):
            demand = _demand(f"/proc/{process}/task/{tid}/schedstat")
            if demand is not None:
                self._sums[whose] += max(demand - before.get(tid, 0 if before else demand), 0)
                self._taken[tid] = demand
                count += 1
        return count


def children_of(process: str) -> list[int]:
    """Processes that a process started, and that these started."""
    found: list[int] = []
    waiting = [process]
    while waiting and len(found) < MOST_PROCESSES:
        parent = waiting.pop()
        for tid in _listed(f"/proc/{parent}/task"):
            text = _read(f"/proc/{parent}/task/{tid}/children")
            pids = [int(pid) for pid in text.split()]
            found += pids
            waiting += map(str, pids)
    return found[:MOST_PROCESSES]


def processors() -> float:
    """Processors that this process may use: by its affinity, and by the quota of its control group."""
    count = float(len(os.sched_getaffinity(0)))
    quota, _, period = _read("/sys/fs/cgroup/cpu.max").partition(" ")
    return min(count, int(quota) / int(period)) if quota.isdigit() and period.strip().isdigit() else count


def _demand(path: str) -> int | None:
    parts = _read(path).split()
    return int(parts[0]) + int(parts[1]) if len(parts) >= 2 else None


def _listed(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""

"""How many processors a process and its children use, and would use if they had them, as counters that grow."""

from __future__ import annotations

import os

from stepscope.runtime import _core, clock, strings, tracks

CATEGORY = "processor demand"
THIS_PROCESS = ("this process runs", "this process waits")
CHILDREN = ("child processes run", "child processes wait")
"""Names of counters: ns on processors, and ns of waiting for one."""
PROCESSORS = "processors"
IN_USE = "processors in use"
"""How many ns the processors that this process may use were busy, whoever used them."""
MOST_PROCESSES = 64
MOST_THREADS = 256
"""Threads from which on no more children are read; reading one takes about 10 µs."""


class ProcessorDemand:
    """The counters, which only grow; of a process that ends, what was read last stays in them."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[int, int]] = {}
        self._sums: dict[str, int] = dict.fromkeys((*THIS_PROCESS, *CHILDREN), 0)

    def record(self) -> None:
        """Reads the schedstat of every thread, and records the sums. Where there is none, nothing is recorded."""
        before, self._read = self._read, {}
        self._add(THIS_PROCESS, "self", before)
        if not self._read:
            return
        for pid in children_of("self"):
            self._add(CHILDREN, str(pid), before)
            if len(self._read) > MOST_THREADS:
                break
        now, track, category = clock.now(), tracks.process(), strings.category(CATEGORY)
        for name, value in (*self._sums.items(), (PROCESSORS, processors()), (IN_USE, busy_ns())):
            _core.put(True, strings.intern(name), category, track, now, float(value), b"")

    def _add(self, names: tuple[str, str], process: str, before: dict[str, tuple[int, int]]) -> None:
        for tid in _listed(f"/proc/{process}/task"):
            parts = _read(f"/proc/{process}/task/{tid}/schedstat").split()
            if len(parts) < 2:
                continue
            times = self._read[tid] = int(parts[0]), int(parts[1])
            # Time before the first reading of a thread is not of this run.
            for name, now, then in zip(names, times, before.get(tid, (0, 0) if before else times), strict=True):
                self._sums[name] += max(now - then, 0)


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


def busy_ns() -> float:
    """ns for which the processors that this process may use were not idle, since the machine began (`/proc/stat`)."""
    mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    ticks = 0
    for line in _read("/proc/stat").splitlines():
        name, _, rest = line.partition(" ")
        if name in mine:
            user, nice, system, _, _, irq, soft_irq, steal, *_ = map(int, rest.split())
            ticks += user + nice + system + irq + soft_irq + steal
    return ticks * 1e9 / os.sysconf("SC_CLK_TCK")


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

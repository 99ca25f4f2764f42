"""Counters of the processor time that a process and its children use, and of the time that they wait for processors."""

from __future__ import annotations

import os

from stepscope.runtime import _core
from stepscope.runtime.events import clock, strings, tracks

CATEGORY = "processor demand"
THIS_PROCESS = ("this process runs", "this process waits")
CHILDREN = ("child processes run", "child processes wait")
"""Names of counters: ns on processors, and ns of waiting for a processor."""
PROCESSORS = "processors"
IN_USE = "processors in use"
"""Counter: ns for which the processors that this process may use were busy, with any process."""
MOST_PROCESSES = 64
MOST_THREADS = 256
"""After so many threads, no further children are read: reading a thread takes about 10 µs."""


class ProcessorDemand:
    """The counters. They only grow, and include the last readings of processes that have ended."""

    def __init__(self) -> None:
        self._read: dict[int, tuple[int, int]] = {}
        self._sums: dict[str, int] = dict.fromkeys((*THIS_PROCESS, *CHILDREN), 0)

    def record(self, times: list[tuple[int, int, int]], waiting: list[int]) -> None:
        """Reads the schedstat of the children's threads, and records the sums. Without schedstat, it records nothing.

        `times` are those of the threads of this process, and `waiting` are its children, as `_core.thread_times` returns both.
        """
        before, self._read = self._read, {}
        self._add(THIS_PROCESS, times, before)
        if not self._read:
            return
        found = 0
        while waiting and found < MOST_PROCESSES and len(self._read) <= MOST_THREADS:
            times, more = _core.thread_times(waiting.pop())
            self._add(CHILDREN, times, before)
            waiting += more
            found += 1
        now, track, category = clock.now(), tracks.process(), strings.category(CATEGORY)
        for name, value in (*self._sums.items(), (PROCESSORS, processors()), (IN_USE, busy_ns())):
            _core.put(True, strings.intern(name), category, track, now, float(value), b"")

    def _add(
        self, names: tuple[str, str], times: list[tuple[int, int, int]], before: dict[int, tuple[int, int]]
    ) -> None:
        for tid, ran, waited in times:
            if ran < 0:
                continue
            self._read[tid] = ran, waited
            # Time before the first reading of a thread does not belong to this run.
            for name, now, then in zip(
                names, (ran, waited), before.get(tid, (0, 0) if before else (ran, waited)), strict=True
            ):
                self._sums[name] += max(now - then, 0)


def processors() -> float:
    """Returns the number of processors that this process may use, by its affinity and the quota of its control group."""
    count = float(len(os.sched_getaffinity(0)))
    quota, _, period = _core.read_proc("/sys/fs/cgroup/cpu.max").partition(" ")
    return min(count, int(quota) / int(period)) if quota.isdigit() and period.strip().isdigit() else count


def busy_ns() -> float:
    """Returns for how many ns since boot the processors that this process may use were not idle (`/proc/stat`)."""
    mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    ticks = 0
    for line in _core.read_proc("/proc/stat").splitlines():
        name, _, rest = line.partition(" ")
        if name in mine:
            user, nice, system, _, _, irq, soft_irq, steal, *_ = map(int, rest.split())
            ticks += user + nice + system + irq + soft_irq + steal
    return ticks * 1e9 / os.sysconf("SC_CLK_TCK")

"""Counters of the processor for this process: instructions, cycles, cache and branch misses."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, get_args

from stepscope.backends.base import Sink
from stepscope.backends.counters.counting import CountingBackend, Reading, chosen
from stepscope.backends.counters.perf_event import MOST_FILES, PerfError, PerfFile, open_event
from stepscope.runtime.events.record import Block

PerfGroup = Literal["ipc", "cache", "branch", "software"]
GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "ipc": ("instructions", "cycles"),
    "cache": ("cache references", "cache misses"),
    "branch": ("branches", "branch misses"),
    "software": ("page faults", "processor time"),
}
"""Events by group."""
DEFAULT: tuple[PerfGroup, ...] = get_args(PerfGroup)[:3]
_SHARES = {
    "instructions per cycle": ("instructions", "cycles", 1),
    "cache misses %": ("cache misses", "cache references", 100),
    "branch misses %": ("branch misses", "branches", 100),
}
"""One event as a part of another, and the factor."""


class PerfBackend(CountingBackend):
    """Records what the processor does for the threads of this process, in user code, as counters of category `processor`:
    how often in a second each event happened, and instructions per cycle, shares of cache and branch misses.

    It takes the system call perf_event_open, which is allowed if kernel.perf_event_paranoid is 2 or less or the process has
    CAP_PERFMON; many virtual machines hide the counters of their processor. Recording costs the threads nothing but the
    switching of counters at their context switches.

    Args:
        groups: `ipc`, `cache`, `branch`; and `software`, which the kernel counts itself, on any machine: page faults, and
            ns of processor time in a second.
        interval: seconds between two samples.
        name: of this source.

    Raises:
        ValueError: for a group that there is none of, with the nearest; if the interval is not above 0.
    """

    category = "processor"

    def __init__(self, groups: Sequence[PerfGroup] = DEFAULT, interval: float = 0.05, *, name: str = "perf") -> None:
        super().__init__(name, interval)
        self._groups = chosen("groups", groups, GROUPS)
        self._files: list[PerfFile] = []
        self._events: tuple[str, ...] = ()

    def open(self, sink: Sink) -> None:
        """Starts the thread.

        Raises:
            BackendError: if none of the events can be counted here; says why and what to do.
        """
        problems = refusals(self._groups)
        self._events = tuple(event for group in self._groups for event in GROUPS[group] if event not in problems)
        if not self._events:
            raise self._nothing(next(iter(problems.values())))
        for problem in problems.values():
            self._note(problem)
        super().open(sink)

    def _sample(self, now: int) -> tuple[Block | None, bytes]:
        if not self._files:
            self._open_files()
        return super()._sample(now)

    def _border_passed(self, now: int) -> tuple[Block | None, bytes]:
        passed = super()._border_passed(now)
        if not self._recording:
            self._close_files()
        return passed

    def _run(self, sink: Sink) -> None:
        try:
            super()._run(sink)
        finally:
            self._close_files()

    def _read(self) -> Iterator[Reading]:
        counts: dict[str, float] = {}
        for file in self._files:
            counts[file.event] = counts.get(file.event, 0.0) + file.read()
        for event, count in counts.items():
            yield Reading(event, count, total=True)

    def _rates(self, rates: Mapping[str, float]) -> Mapping[str, float]:
        shares = {
            name: factor * rates[part] / rates[whole]
            for name, (part, whole, factor) in _SHARES.items()
            if part in rates and rates.get(whole)
        }
        return {**{f"{event} /s": rate for event, rate in rates.items()}, **shares}

    def _open_files(self) -> None:
        """Opens every event for every thread that there is; those that they start are counted with them."""
        own = threading.get_native_id()
        seen: set[int] = set()
        while threads := {int(path.name) for path in Path("/proc/self/task").iterdir()} - seen - {own}:
            for thread in sorted(threads):
                seen.add(thread)
                if len(self._files) + len(self._events) > MOST_FILES:
                    self._note(f"there are too many threads; {len(seen) - 1} of them are counted")
                    return
                self._open_thread(thread)

    def _open_thread(self, thread: int) -> None:
        try:
            for event in self._events:
                self._files.append(open_event(event, thread))
        except ProcessLookupError:
            return  # it has ended meanwhile
        except PerfError as error:
            self._note(str(error.strerror))

    def _close_files(self) -> None:
        files, self._files = self._files, []
        for file in files:
            os.close(file.file)


def refusals(groups: Sequence[str]) -> dict[str, str]:
    """Which events of these groups cannot be counted on this machine, each with the reason."""
    found: dict[str, str] = {}
    for group in groups:
        for event in GROUPS[group]:
            try:
                os.close(open_event(event, 0).file)
            except PerfError as error:
                found[event] = str(error.strerror)
    return found

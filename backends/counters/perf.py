"""Counters of the processor for this process: instructions, cycles, cache and branch misses.

Sources: perf_event_open(2), and the kernel's include/uapi/linux/perf_event.h and Documentation/admin-guide/perf-security.rst.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple, get_args

import msgspec

from stepscope.backends.base import Sink
from stepscope.backends.counters.counting import CountingBackend, Reading, chosen
from stepscope.runtime.events.record import Block

_CALLS = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "ppc64le": 319, "s390x": 331}
"""Numbers of the system call."""
_ATTRIBUTES = struct.Struct("<IIQQQQQIIQQ")
"""`struct perf_event_attr` as of its second version, which every kernel knows."""
_TIMES = 1 | 2
"""PERF_FORMAT_TOTAL_TIME_ENABLED and _RUNNING: a processor has few counters, which events take turns on."""
_INHERIT, _EXCLUDE_KERNEL, _EXCLUDE_HYPERVISOR, _THREADS_ONLY = 1 << 1, 1 << 5, 1 << 6, 1 << 35
_CLOSE_ON_EXEC = 8
_READING = struct.Struct("<QQQ")
_MOST_PARANOID = 2
"""The highest kernel.perf_event_paranoid with which user code may be counted; some distributions know 3 and 4."""
MOST_FILES = 2048
"""Files that are opened at most; each thread takes one for each event."""


class Event(NamedTuple):
    """The kernel's type and number of an event."""

    type: int
    config: int


EVENTS: Final = {
    "instructions": Event(0, 1),
    "cycles": Event(0, 0),
    "cache references": Event(0, 2),
    "cache misses": Event(0, 3),
    "branches": Event(0, 4),
    "branch misses": Event(0, 5),
    "page faults": Event(1, 2),
    "processor time": Event(1, 1),
}
"""Events that the kernel names on every processor; the last two are its own. Processor time in ns."""


class PerfError(OSError):
    """Raised if an event cannot be counted; says why and what to do."""


class PerfFile(msgspec.Struct, frozen=True):
    """One event of one thread."""

    event: str
    file: int

    def read(self) -> float:
        """The count so far; estimated, if the event had to share a counter."""
        value, enabled, running = _READING.unpack(os.read(self.file, _READING.size))
        return value * (enabled / running) if running else 0.0


def open_event(event: str, thread: int) -> PerfFile:
    """Begins to count an event of `EVENTS` for a thread, 0 for this one, and for those that it starts from now on; user code only.

    Raises:
        PerfError: if it cannot be counted.
        ProcessLookupError: if the thread has ended.
    """
    flags = _INHERIT | _EXCLUDE_KERNEL | _EXCLUDE_HYPERVISOR
    file = _open(EVENTS[event], thread, flags | _THREADS_ONLY)
    if file < 0 and ctypes.get_errno() == errno.EINVAL:  # before Linux 5.13: processes that it starts count as well
        file = _open(EVENTS[event], thread, flags)
    if file >= 0:
        return PerfFile(event, file)
    code = ctypes.get_errno()
    if code == errno.ESRCH:
        raise ProcessLookupError(code, f"thread {thread} has ended")
    raise PerfError(code, f"{event}: {_reason(code)}")


def _open(event: Event, thread: int, flags: int) -> int:
    number = _CALLS.get(platform.machine())
    if number is None:
        ctypes.set_errno(errno.ENOSYS)
        return -1
    attributes = _ATTRIBUTES.pack(event.type, _ATTRIBUTES.size, event.config, 0, 0, _TIMES, flags, 0, 0, 0, 0)
    # thread, any processor, no group
    return int(_libc.syscall(ctypes.c_long(number), attributes, thread, -1, -1, ctypes.c_ulong(_CLOSE_ON_EXEC)))


def _reason(code: int) -> str:
    if code in (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP):
        return (
            "the processor has no such counter, or the virtual machine hides it (QEMU shows them with -cpu host,pmu=on)"
        )
    if code in (errno.EACCES, errno.EPERM):
        return f"it is not allowed: {permission(paranoia())}"
    if code == errno.ENOSYS:
        return "this system has no perf_event_open"
    return os.strerror(code)


def permission(paranoid: str) -> str:
    """Returns what allows the system call where it is refused.

    Args:
        paranoid: the value of `kernel.perf_event_paranoid`. Up to 2 everybody may count user code, so something else refuses.
    """
    if paranoid.isdigit() and int(paranoid) > _MOST_PARANOID:
        return f"sysctl kernel.perf_event_paranoid={_MOST_PARANOID} as root (it is {paranoid}), or CAP_PERFMON for the process"
    return "let the container's seccomp profile pass perf_event_open (docker run --cap-add PERFMON, or SYS_ADMIN in older ones)"


def paranoia() -> str:
    """The value of kernel.perf_event_paranoid, as a text; `unknown` where there is none."""
    try:
        return Path("/proc/sys/kernel/perf_event_paranoid").read_text().strip()
    except OSError:
        return "unknown"


_libc = ctypes.CDLL(None, use_errno=True)


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
"""An event as a part of another one, and the factor."""


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

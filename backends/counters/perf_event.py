"""Counters of the processor for the threads of this process, by the system call perf_event_open.

Sources: perf_event_open(2), and the kernel's include/uapi/linux/perf_event.h and Documentation/admin-guide/perf-security.rst.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

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
"""Those that the kernel has names for on every processor; the last two are its own. Processor time in ns."""


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
    """Begins to count an event of a thread, and of threads that it starts from now on; user code only.

    Args:
        event: a name of `EVENTS`.
        thread: its number as the system has it; 0 for this one.

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

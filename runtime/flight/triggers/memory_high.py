"""Memory that comes near its limit: that of the cgroup, of the address space, or of the resident set, read from the system.

Sources: cgroups(7), the kernel's cgroup-v2.rst (`memory.current`, `memory.max`, `memory.stat`) and cgroup-v1/memory.rst
(`memory.usage_in_bytes`, `memory.limit_in_bytes`), proc(5) (`/proc/self/statm`), getrlimit(2).
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from stepscope.runtime.flight.triggers.trigger import Evaluator, Finding, News
from stepscope.runtime.session.system import field, groups, number
from stepscope.runtime.settings.arguments import got
from stepscope.runtime.settings.checked import Checked

_REARM = 0.95
"""Share of the threshold below which memory must fall before the trigger may fire again."""
_UNLIMITED = 1 << 60
"""Limits above this mean that there is none: cgroup v1 says 2^63 rounded down to a page."""

_V1 = ("memory.usage_in_bytes", "memory.limit_in_bytes", b"total_inactive_file")
_V2 = ("memory.current", "memory.max", b"inactive_file")


class Usage(msgspec.Struct, frozen=True):
    """Memory in bytes, by one measure."""

    what: str
    used: int
    limit: int

    @property
    def share(self) -> float:
        return self.used / self.limit


class ProcessMemory:
    """Reads the measures that have a limit. Which files there are is found once."""

    def __init__(self, limit: int | None = None, root: Path = Path("/")) -> None:
        """Args: a limit of the resident set in bytes, of the user's; where `/proc` and `/sys` are."""
        self._limit = limit
        self._statm = root / "proc/self/statm"
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._cgroups = list(_cgroups(root))

    def read(self) -> list[Usage]:
        """The measures as they are now; those that cannot be read are left out."""
        found: list[Usage] = []
        try:
            size, resident = (int(field) * self._page for field in self._statm.read_bytes().split()[:2])
        except (OSError, ValueError):
            size = resident = 0
        if self._limit is not None and resident:
            found.append(Usage("resident memory", resident, self._limit))
        soft = resource.getrlimit(resource.RLIMIT_AS)[0]
        if soft != resource.RLIM_INFINITY and size:
            found.append(Usage("address space (RLIMIT_AS)", size, soft))
        for directory, used_name, limit_name, cache_name in self._cgroups:
            limit = number(directory / limit_name)
            used = number(directory / used_name)
            if limit is not None and used is not None and 0 < limit < _UNLIMITED:
                # Pages of files that were not used lately are given back before anything is killed.
                cache = field(directory / "memory.stat", cache_name)
                found.append(Usage(f"memory of the cgroup {directory}", max(used - cache, 0), limit))
        return found


def _cgroups(root: Path) -> Iterator[tuple[Path, str, str, bytes]]:
    """(directory, file of the usage, file of the limit, key of the cache) of each group that this process is in."""
    for directory, first_version in groups("memory", root):
        use, limit, cache = _V1 if first_version else _V2
        if (directory / limit).is_file():
            yield directory, use, limit, cache


class MemoryHigh(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fires when the process comes near a limit of its memory: that of its cgroup, RLIMIT_AS, or `limit`.

    It saves at once. It may fire again after memory has fallen clearly below the threshold.

    Raises:
        ValueError: for a value out of its range; names the field.
        TypeError: if `device` cannot be called.
    """

    name = "memory_high"

    __unchecked__ = ("device",)

    share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.9
    """Share of a limit from which on memory counts as high."""
    limit: Annotated[int, msgspec.Meta(gt=0)] | None = None
    """A limit of resident memory in bytes, in addition to the limits of the system."""
    device: Callable[[], float] | None = None
    """Returns the used share of a device's memory, 0 to 1. A trigger with a device runs on its own thread, as a trigger of the
    program does, so the function may be slow."""
    interval: Annotated[float, msgspec.Meta(ge=0)] = 0.5
    """Seconds from one look to the next."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.device is not None and not callable(self.device):
            raise TypeError(f"MemoryHigh.device must be a function without arguments, {got(self.device)}")

    def evaluator(self) -> Evaluator:
        """Knows whether memory is high now."""
        return _Evaluator(self, ProcessMemory(self.limit))


class _Evaluator:
    def __init__(self, settings: MemoryHigh, memory: ProcessMemory) -> None:
        self._settings = settings
        self._memory = memory
        self._next = 0
        self._high = False

    def look(self, news: News) -> Sequence[Finding]:
        if news.now < self._next:
            return ()
        self._next = news.now + round(self._settings.interval * 1e9)
        measured = [(usage.share, _text(usage)) for usage in self._memory.read()]
        if self._settings.device is not None:
            used = float(self._settings.device())
            measured.append((used, f"{used:.1%} of the device's memory is used"))
        share, text = max(measured, default=(0.0, ""))
        if self._high:
            self._high = share >= self._settings.share * _REARM
            return ()
        if share < self._settings.share:
            return ()
        self._high = True
        return [Finding(at=news.now, value=share, text=text, at_once=True)]


def _text(usage: Usage) -> str:
    return f"{usage.what}: {usage.used / 2**20:,.0f} of {usage.limit / 2**20:,.0f} MiB are used ({usage.share:.1%})"

"""How much memory the process uses, and how much it may: cgroup, address space and resident set, read from the system.

Sources: cgroups(7), the kernel's cgroup-v2.rst (`memory.current`, `memory.max`, `memory.stat`) and cgroup-v1/memory.rst
(`memory.usage_in_bytes`, `memory.limit_in_bytes`), proc(5) (`/proc/self/statm`), getrlimit(2).
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import msgspec

from stepscope.runtime.session.system import field, groups, number

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
        """Used share of the limit."""
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

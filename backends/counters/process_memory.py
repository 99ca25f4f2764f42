"""Resident memory of this process, as a counter."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stepscope.backends.counters.counting import CountingBackend, Reading
from stepscope.runtime.session.system import groups, number

COUNTER = "process allocated"
"""Name of the counter, in bytes, of category `memory`."""


class ProcessMemoryBackend(CountingBackend):
    """Records `process allocated`, in bytes, of category `memory`.

    Args:
        interval: seconds between two samples.
        always: whether windows have samples that were not asked for with them (`WindowDetail.memory`).
        name: of this source.

    Raises:
        ValueError: if the interval is not above 0.
    """

    category = "memory"
    what = "memory"

    def __init__(self, interval: float = 0.02, *, always: bool = True, name: str = "process memory") -> None:
        super().__init__(name, interval, always=always)
        self._page = resource.getpagesize()

    def _read(self) -> Iterator[Reading]:
        yield Reading(COUNTER, resident_bytes(self._page))


def resident_bytes(page: int) -> int:
    """Bytes of memory that the process has now; its highest so far where the system has no /proc."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * page
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def capacities() -> dict[str, int]:
    """Bytes of memory by device: of the host what this process may use, as `cpu/0`, and of torch's devices, as `gpu/<n>`, if the
    program uses them."""
    found = {"cpu/0": os.sysconf("SC_PHYS_PAGES") * resource.getpagesize()}
    for directory, old in groups("memory"):
        limit = number(directory / ("memory.limit_in_bytes" if old else "memory.max"))
        if limit is not None:
            found["cpu/0"] = min(found["cpu/0"], limit)
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_available() and cuda.is_initialized():
        for device in range(cuda.device_count()):
            found[f"gpu/{device}"] = int(cuda.get_device_properties(device).total_memory)
    return found

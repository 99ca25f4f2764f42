"""Resident memory of this process, as a counter."""

from __future__ import annotations

import resource
from pathlib import Path

from stepscope.backends.counters.sampling import SamplingBackend
from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.record import Block, Kind, empty_block

COUNTER = "process allocated"
"""Name of the counter, in bytes, of category `memory`."""


class ProcessMemoryBackend(SamplingBackend):
    """Records `process allocated`, in bytes, of category `memory`.

    Args:
        interval: seconds between two samples.
        always: whether windows have samples that were not asked for with them (`WindowDetail.memory`).
        name: of this source.

    Raises:
        ValueError: if the interval is not above 0.
    """

    what = "memory"

    def __init__(self, interval: float = 0.02, *, always: bool = True, name: str = "process memory") -> None:
        super().__init__(name, interval, always=always)
        self._page = resource.getpagesize()

    def _sample(self, now: int) -> tuple[Block | None, bytes]:
        event = empty_block(1)
        event["ts"], event["kind"] = now, int(Kind.COUNTER)
        event["name"], event["category"] = strings.intern(COUNTER), strings.category("memory")
        event["track"] = tracks.process()
        event["value"] = resident_bytes(self._page)
        return event, b""


def resident_bytes(page: int) -> int:
    """Bytes of memory that the process has now; its highest so far where the system has no /proc."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * page
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

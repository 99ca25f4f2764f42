"""Memory as a whole: capacity, allocations, peak, and by which part of the program the peak was allocated."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from stepscope.analysis.allocations import EARLIER, MemoryTable, capacity_of
from stepscope.analysis.findings import DeviceMemory
from stepscope.compat.mindspore.products.base import write_json
from stepscope.compat.mindspore.products.memory_record import MemoryRecord
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.export.run import Run
from stepscope.runtime.windows.window import Window

GIB = 1 << 30


class MemoryUsage:
    """Writes `memory_usage_summary_<rank>.json` and `memory_usage_details_<rank>.json`.

    The summary has the keys of MindSpore up to 2.2 (mindspore/profiler/parser/memory_usage_parser.py), with sizes in GiB, for the
    device that training is for; `static_mem` is what was allocated before the window and still held at the peak. Where no
    backend told of allocations, their numbers are `null`, and the peak is that of the process. The details have every device, in bytes.

    Args:
        directory: for the files.
        rank: number in their names.
        device: that training is for, such as `gpu/0`.
        record: what was read of the process's memory.
    """

    name = "memory usage"

    def __init__(self, directory: Path, rank: int, device: str, record: MemoryRecord) -> None:
        self.devices: tuple[DeviceMemory, ...] = ()
        """There when the window was finished."""
        self._directory, self._rank, self._device, self._record = directory, rank, device, record
        self._table = MemoryTable()
        self._run: Run | None = None

    async def open(self, run: Run) -> None:
        self._run = run

    async def add(self, batch: EventBatch) -> None:
        self._table.update(batch)

    async def finish(self, window: Window) -> tuple[Path, ...]:
        metadata: Mapping[str, Any] = {} if self._run is None else self._run.metadata()
        self.devices = self._table.devices(metadata)
        peaks = self._record.peaks
        if not self.devices and not peaks:
            return ()
        own = next((each for each in self.devices if each.device == self._device), None)
        capacity = capacity_of(metadata)
        details = [msgspec.structs.asdict(each) | {"tags": _tags(each)} for each in self.devices]
        return (
            self._write("summary", _summary(own, capacity.get(self._device), peaks)),
            self._write("details", {"capacity": capacity, "peaks": peaks, "devices": details}),
        )

    def _write(self, what: str, found: Mapping[str, Any]) -> Path:
        return write_json(self._directory / f"memory_usage_{what}_{self._rank}.json", found)


def _summary(memory: DeviceMemory | None, capacity: int | None, peaks: Mapping[str, float]) -> dict[str, Any]:
    peak = float(max(peaks.values(), default=0.0)) if memory is None else memory.peak
    return {
        "capacity": None if capacity is None else capacity / GIB,
        "allocations": None if memory is None else memory.allocations,
        "deallocations": None if memory is None else memory.deallocations,
        "peak_mem": peak / GIB,
        "static_mem": None
        if memory is None
        else sum(tag.bytes for tag in memory.tags if tag.name == EARLIER and not tag.count) / GIB,
        "breakdowns": [] if memory is None else _tags(memory),
    }


def _tags(memory: DeviceMemory) -> list[dict[str, Any]]:
    return [
        {"name": tag.shown, "size": tag.bytes / GIB, "allocations": tag.count, "share": tag.share_of(memory.peak)}
        for tag in memory.tags
    ]

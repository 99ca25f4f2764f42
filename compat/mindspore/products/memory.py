"""Memory over time, by step, and by the part of the program that allocated the peak."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stepscope.analysis.findings import DeviceMemory
from stepscope.analysis.tables.allocations import EARLIER, MemoryTable, capacity_of
from stepscope.compat.mindspore.output_layout import write_csv, write_json
from stepscope.compat.mindspore.products.base import Product, memory_readings, microseconds
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.windows.window import Window

RECORD = ("Component", "Timestamp(us)", "Total Allocated(MB)", "Total Reserved(MB)", "Total Active(MB)", "Device Type")
"""Header of MindSpore 2.10; the timestamp is Unix time."""
BY_STEP = ("Step", "Component", "Peak Allocated(MB)", "Allocated(MB)", "Change(MB)", "Samples")
"""`Peak` is from the step's begin to its end, `Allocated` at its end, `Change` by how much more that is than at its begin, and
`Samples` the readings in the step itself."""

GIB = 1 << 30
_COLUMNS = ("allocated", "reserved", "active")


class MemoryRecord(Product):
    """Writes `memory_record.csv` of counters named `<component> allocated`, `... reserved` and `... active`, and `memory_by_step.csv` of the
    first of these if that is wanted.

    A reading holds until the next one, so a step without any has that of an earlier step.
    """

    name = "memory"

    def __init__(self, directory: Path, device: str, *, by_step: bool) -> None:
        super().__init__(directory)
        self._device, self._by_step = device, by_step
        self._values: dict[tuple[int, str], list[float]] = {}
        self._allocated: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
        self.peaks: dict[str, float] = {}
        """Highest allocation of each component, in bytes."""

    async def add(self, batch: EventBatch) -> None:
        for component, column, readings in memory_readings(batch.events):
            if column not in _COLUMNS:
                continue
            for at, value in readings:
                self._values.setdefault((at, component), [0.0, 0.0, 0.0])[_COLUMNS.index(column)] = value
                if column == "allocated":
                    self._allocated[component].append((at, value))

    async def finish(self, window: Window) -> tuple[Path, ...]:
        if not self._values:
            return ()
        for (_, component), row in self._values.items():
            self.peaks[component] = max(self.peaks.get(component, 0.0), row[0])
        rows = (
            (component, microseconds(self.run.anchor.wall(at)), *map(_megabytes, row), self._device)
            for (at, component), row in sorted(self._values.items())
        )
        files = [write_csv(self.directory / "memory_record.csv", RECORD, rows)]
        steps = [row for name, found in self._allocated.items() for row in _steps(name, sorted(found), window)]
        if steps and self._by_step:
            files.append(write_csv(self.directory / "memory_by_step.csv", BY_STEP, sorted(steps)))
        return tuple(files)


def _steps(component: str, readings: list[tuple[int, float]], window: Window) -> Iterator[tuple[Any, ...]]:
    times = np.array([at for at, _ in readings], np.int64)
    values = np.array([value for _, value in readings], np.float64)
    for step in window.steps:
        first = int(np.searchsorted(times, step.start_ns, "left"))
        last = int(np.searchsorted(times, step.end_ns, "right"))
        inside = values[max(first - 1, 0) : last]
        if last and len(inside):
            sizes = (inside.max(), inside[-1], inside[-1] - inside[0])
            yield (step.number, component, *map(_megabytes, sizes), last - first)


def _megabytes(size: float) -> str:
    return f"{size / 2**20:.6f}"


class MemoryUsage(Product):
    """Writes `memory_usage_summary_<rank>.json` and `memory_usage_details_<rank>.json`.

    The summary has the keys of MindSpore up to 2.2 (mindspore/profiler/parser/memory_usage_parser.py), with sizes in GiB, for the
    device that training is for, such as `gpu/0`; `static_mem` is what was allocated before the window and still held at the peak.
    Where no backend reports allocations, their numbers are `null`, and the peak is that of the process. The details have every
    device, in bytes.
    """

    name = "memory usage"

    def __init__(self, directory: Path, rank: int, device: str, record: MemoryRecord) -> None:
        super().__init__(directory)
        self._rank, self._device, self._record = rank, device, record
        self._table = MemoryTable()

    async def add(self, batch: EventBatch) -> None:
        self._table.update(batch)

    async def finish(self, window: Window) -> tuple[Path, ...]:
        metadata = self.run.metadata()
        devices, peaks = self._table.devices(metadata), self._record.peaks
        if not devices and not peaks:
            return ()
        own = next((each for each in devices if each.device == self._device), None)
        capacity = capacity_of(metadata)
        details = [msgspec.structs.asdict(each) | {"tags": _tags(each)} for each in devices]
        return (
            self._write("summary", _summary(own, capacity.get(self._device), peaks)),
            self._write("details", {"capacity": capacity, "peaks": peaks, "devices": details}),
        )

    def _write(self, kind: str, found: Mapping[str, Any]) -> Path:
        return write_json(self.directory / f"memory_usage_{kind}_{self._rank}.json", found)


def _summary(memory: DeviceMemory | None, capacity: int | None, peaks: Mapping[str, float]) -> dict[str, Any]:
    summary: dict[str, Any] = {
        "capacity": None if capacity is None else capacity / GIB,
        "allocations": None,
        "deallocations": None,
        "peak_mem": float(max(peaks.values(), default=0.0)) / GIB,
        "static_mem": None,
        "breakdowns": [],
    }
    if memory is not None:
        summary |= {
            "allocations": memory.allocations,
            "deallocations": memory.deallocations,
            "peak_mem": memory.peak / GIB,
            "static_mem": sum(tag.bytes for tag in memory.tags if tag.name == EARLIER and not tag.count) / GIB,
            "breakdowns": _tags(memory),
        }
    return summary


def _tags(memory: DeviceMemory) -> list[dict[str, Any]]:
    return [
        {"name": tag.shown, "size": tag.bytes / GIB, "allocations": tag.count, "share": tag.share_of(memory.peak)}
        for tag in memory.tags
    ]

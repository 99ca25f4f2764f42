"""Memory over time."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from stepscope.compat.mindspore.products.base import MEMORY, in_categories, microseconds, write_csv
from stepscope.runtime.events import strings
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.events.record import EventBatch, Kind
from stepscope.runtime.export.run import Run
from stepscope.runtime.windows.window import Window

HEAD = ("Component", "Timestamp(us)", "Total Allocated(MB)", "Total Reserved(MB)", "Total Active(MB)", "Device Type")
"""Header of MindSpore 2.10; the timestamp is Unix time."""

_COLUMNS = ("allocated", "reserved", "active")


class MemoryRecord:
    """Writes `memory_record.csv` of counters named `<component> allocated`, `... reserved` and `... active`.

    Args:
        directory: for the file.
        device: whose memory it is, for the last column.
    """

    name = "memory"

    def __init__(self, directory: Path, device: str) -> None:
        self._directory, self._device = directory, device
        self._values: dict[tuple[int, str], list[float]] = {}
        self._anchor = ClockAnchor(0, 0, 0)
        self.peaks: dict[str, float] = {}
        """Highest allocation of each component, in bytes."""

    async def open(self, run: Run) -> None:
        self._anchor = run.anchor

    async def add(self, batch: EventBatch) -> None:
        events = batch.events
        events = events[(events["kind"] == int(Kind.COUNTER)) & in_categories(events, (MEMORY,))]
        for name in np.unique(events["name"]).tolist():
            component, _, column = strings.text(name).rpartition(" ")
            if column not in _COLUMNS:
                continue
            of_name = events[events["name"] == name]
            for at, value in zip(of_name["ts"].tolist(), of_name["value"].tolist(), strict=True):
                row = self._values.setdefault((at, component), [0.0, 0.0, 0.0])
                row[_COLUMNS.index(column)] = value

    async def finish(self, window: Window) -> tuple[Path, ...]:
        if not self._values:
            return ()
        for (_, component), row in self._values.items():
            self.peaks[component] = max(self.peaks.get(component, 0.0), row[0])
        rows = (
            (component, microseconds(self._anchor.wall(at)), *(f"{value / 2**20:.6f}" for value in row), self._device)
            for (at, component), row in sorted(self._values.items())
        )
        return (write_csv(self._directory / "memory_record.csv", HEAD, rows),)

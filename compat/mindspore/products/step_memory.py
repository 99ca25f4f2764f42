"""Memory, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from stepscope.compat.mindspore.products.base import MEMORY, in_categories, write_csv
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import EventBatch, Kind
from stepscope.runtime.export.run import Run
from stepscope.runtime.windows.window import Window

HEAD = ("Step", "Component", "Peak Allocated(MB)", "Allocated(MB)", "Change(MB)", "Samples")
"""`Allocated` is that at the step's end, `Change` by how much more that is than at its begin."""


class StepMemoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """One component in one step; sizes in bytes."""

    step: int
    component: str
    peak: float
    """The most that was seen from its begin to its end."""
    allocated: float
    """The last that was seen by its end."""
    change: float
    """That less the last that was seen by its begin, or the first in it where nothing was."""
    samples: int
    """Readings in the step itself."""


class StepMemory:
    """Writes `memory_by_step.csv` of counters named `<component> allocated`.

    A reading holds until the next one, so a step without any has that of an earlier step.

    Args:
        directory: for the file.
    """

    name = "step memory"

    def __init__(self, directory: Path) -> None:
        self._path = directory / "memory_by_step.csv"
        self._readings: dict[str, list[tuple[int, float]]] = {}
        self.rows: list[StepMemoryRow] = []
        """There when the window was finished."""

    async def open(self, run: Run) -> None:
        pass

    async def add(self, batch: EventBatch) -> None:
        events = batch.events
        events = events[(events["kind"] == int(Kind.COUNTER)) & in_categories(events, (MEMORY,))]
        for name in np.unique(events["name"]).tolist():
            component, _, column = strings.text(name).rpartition(" ")
            if column == "allocated":
                of_name = events[events["name"] == name]
                readings = zip(of_name["ts"].tolist(), of_name["value"].tolist(), strict=True)
                self._readings.setdefault(component, []).extend(readings)

    async def finish(self, window: Window) -> tuple[Path, ...]:
        for component, readings in sorted(self._readings.items()):
            self.rows += _rows(component, sorted(readings), window)
        if not self.rows:
            return ()
        self.rows.sort(key=lambda row: (row.step, row.component))
        return (write_csv(self._path, HEAD, map(_fields, self.rows)),)


def _rows(component: str, readings: list[tuple[int, float]], window: Window) -> Iterator[StepMemoryRow]:
    times = np.array([at for at, _ in readings], np.int64)
    values = np.array([value for _, value in readings], np.float64)
    for step in window.steps:
        first = int(np.searchsorted(times, step.start_ns, "left"))
        last = int(np.searchsorted(times, step.end_ns, "right"))
        known = values[max(first - 1, 0) : last]
        if last and len(known):
            yield StepMemoryRow(
                step=step.number,
                component=component,
                peak=float(known.max()),
                allocated=float(known[-1]),
                change=float(known[-1] - known[0]),
                samples=last - first,
            )


def _fields(row: StepMemoryRow) -> tuple[object, ...]:
    sizes = (f"{size / 2**20:.6f}" for size in (row.peak, row.allocated, row.change))
    return (row.step, row.component, *sizes, row.samples)

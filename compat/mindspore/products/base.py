"""The base class of products, and the choice of events that they share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stepscope.analysis.tables import collectives
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Block, EventBatch, Flag, Kind
from stepscope.runtime.export.run import Run
from stepscope.runtime.windows.step_facts import DEVICE_CLASS, Device, class_of
from stepscope.runtime.windows.step_statistics import begins_with_startup
from stepscope.runtime.windows.window import Step, Window

OPERATORS: Final = ("cpu_op", "kernel", "gpu_memcpy", "gpu_memset")
"""Categories of operators, as torch and this package's backends name them."""

PYTHON: Final = "python_function"
"""Category of sampled Python functions."""

MEMORY: Final = "memory"
"""Category of counters of memory, in bytes."""


class Product:
    """One or more files that are made of a window while its events go by."""

    name: str
    """Name of the product, in the table of results."""
    run: Run
    """The run; set by `open`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    async def open(self, run: Run) -> None:
        """Begins; called before any event."""
        self.run = run

    async def add(self, batch: EventBatch) -> None:
        """Adds events of the window."""

    async def finish(self, window: Window) -> tuple[Path, ...]:
        """Writes the files and returns them, none if the window has nothing for them."""
        raise NotImplementedError

    def steps_of(self, window: Window) -> tuple[Step, ...]:
        """The window's steps; under `stepscope run` without step 0, which is startup."""
        steps = window.steps
        startup = len(steps) > 1 and steps[0].number == 0 and begins_with_startup(self.run.metadata())
        return steps[1:] if startup else steps

    async def abandon(self) -> None:
        """Closes what is open, after a call that raised; nothing is called afterwards."""


def spans(events: Block) -> Block:
    """The spans among events, steps left out."""
    steps = (events["flags"] & int(Flag.NUMBERED)) != 0
    chosen: Block = events[(events["kind"] == int(Kind.SPAN)) & ~steps]
    return chosen


def in_categories(events: Block, categories: Iterable[str]) -> NDArray[np.bool_]:
    """Marks the events that have one of the categories."""
    return np.isin(events["category"], [strings.category(name) for name in categories])


def readings(events: Block, *categories: str) -> Iterator[tuple[str, Iterator[tuple[int, float]]]]:
    """Name, and times and values, of each counter in these categories."""
    events = events[(events["kind"] == int(Kind.COUNTER)) & in_categories(events, categories)]
    for name in np.unique(events["name"]).tolist():
        of_name = events[events["name"] == name]
        yield strings.text(name), zip(of_name["ts"].tolist(), of_name["value"].tolist(), strict=True)


def memory_readings(events: Block) -> Iterator[tuple[str, str, Iterator[tuple[int, float]]]]:
    """Component, column, and times and values of the counters named `<component> <column>`, such as `host allocated`."""
    for name, found in readings(events, MEMORY):
        component, _, column = name.rpartition(" ")
        yield component, column, found


def is_communication(name: str, category: str) -> bool:
    """True of collectives and transfers, on the host and on a device."""
    return collectives.is_collective(name, category) or class_of(name, category) == DEVICE_CLASS + Device.COMMUNICATION


def microseconds(ns: int) -> str:
    """A time in µs with three decimals, exact also for Unix times, which doubles do not hold."""
    return f"{ns // 1000}.{ns % 1000:03}"

"""The contract of a product, and what the products of a window share."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from stepscope.exporters.output import whole_file
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Block, EventBatch, Flag, Kind
from stepscope.runtime.export.run import Run
from stepscope.runtime.windows.window import Window

OPERATORS: Final = ("cpu_op", "kernel", "gpu_memcpy", "gpu_memset")
"""Categories of operators, as torch and this package's backends name them."""

PYTHON: Final = "python_function"
"""Category of sampled Python functions."""

MEMORY: Final = "memory"
"""Category of counters of memory, in bytes."""

COLLECTIVES: Final = ("record_param_comms", "c10d::", "_c10d_functional::", "nccl", "gloo:", "hccl", "allreduce",
                      "allgather", "reducescatter", "broadcast-op", "alltoall")  # fmt: skip
"""How names of collectives begin, in small letters, behind the last `/`."""


class Product(Protocol):
    """One thing that is made of a window while its events go by."""

    name: str
    """Of the product, in the table of what became of each."""

    async def open(self, run: Run) -> None:
        """Before any event."""
        ...

    async def add(self, batch: EventBatch) -> None:
        """Takes events of the window."""
        ...

    async def finish(self, window: Window) -> tuple[Path, ...]:
        """Writes what there is to write; returns the files, none if the window has nothing for them."""
        ...


@runtime_checkable
class Holding(Protocol):
    """A product that keeps a file open until it has finished."""

    async def abandon(self) -> None:
        """Closes it, after a call that raised; nothing is called afterwards."""
        ...


def spans(events: Block) -> Block:
    """The spans among events, steps left out."""
    steps = (events["flags"] & int(Flag.NUMBERED)) != 0
    chosen: Block = events[(events["kind"] == int(Kind.SPAN)) & ~steps]
    return chosen


def in_categories(events: Block, categories: Iterable[str]) -> NDArray[np.bool_]:
    """Which of the events have one of the categories."""
    return np.isin(events["category"], [strings.category(name) for name in categories])


def is_collective(name: str) -> bool:
    """True if an operator of this name communicates."""
    return name.rpartition("/")[2].lower().startswith(COLLECTIVES)


def microseconds(ns: int) -> str:
    """A time in µs with three decimals, exact also for Unix times, which doubles do not hold."""
    return f"{ns // 1000}.{ns % 1000:03}"


def write_csv(path: Path, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> Path:
    """Writes a table; every name is legal in it."""
    with whole_file(path) as place, place.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(head)
        writer.writerows(rows)
    return path


def write_json(path: Path, value: Any) -> Path:
    """Writes a value as JSON, over several lines; every name is legal in it."""
    text = json.dumps(value, indent=4, ensure_ascii=False)
    with whole_file(path) as place:
        place.write_text(text + "\n", encoding="utf-8", errors="backslashreplace")
    return path

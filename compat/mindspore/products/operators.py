"""Operators: their runs, shapes and times, as a table, as files and as answers to questions."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.backends.mindspore.blocks import SHAPES
from stepscope.compat.mindspore.output_layout import write_csv
from stepscope.compat.mindspore.products.base import OPERATORS, Product, in_categories, spans
from stepscope.runtime import _core
from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.record import Block, EventBatch, Flag
from stepscope.runtime.events.tracks import TrackKind
from stepscope.runtime.settings.validation import did_you_mean
from stepscope.runtime.windows.window import Window

K = TypeVar("K")

MOST_ARGUMENTS = 1 << 14
"""Different arguments whose meaning is remembered."""

DETAIL = ("op_side", "op_type", "op_name", "full_op_name", "op_occurrences", "op_total_time(ms)", "op_avg_time(ms)",
          "total_proportion", "subgraph", "pid")  # fmt: skip
TYPE = ("op_type", "type_occurrences", "execution_frequency(per-step)", "total_compute_time", "avg_time(ms)", "percent")
"""Headers of MindSpore 2.10. `total_proportion` and `percent` are shares of 1, times are ms."""


class OperatorRow(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of one operator with inputs of the same shapes."""

    name: str
    """Name with its scope, as in `Default/fc-Dense/MatMul-op1`."""
    category: str
    device: int | None
    """Number of the device; `None` for operators of the host."""
    shapes: str
    """Shapes of the inputs; empty if they are not known."""
    count: int
    total_ns: int

    @property
    def short(self) -> str:
        """The name without its scope."""
        return self.name.rpartition("/")[2]

    @property
    def type(self) -> str:
        """The operator's kind: its name without scope and number."""
        head, dash, number = self.short.rpartition("-op")
        return head if dash and head and number.isdigit() else self.short

    @property
    def subgraph(self) -> str:
        """The outermost scope; `Default` for names without."""
        return self.name.partition("/")[0] if "/" in self.name else "Default"

    @property
    def side(self) -> str:
        """`Host` or `Device`."""
        return "Host" if self.device is None else "Device"


class OperatorTable:
    """Adds up the spans of a window. Where there are no operators, the program's own spans are taken for them."""

    def __init__(self) -> None:
        self._sums: defaultdict[tuple[int, int, int, int], list[int]] = defaultdict(lambda: [0, 0])
        self._shapes: dict[str, int] = {"": 0}
        self._numbers: dict[bytes, int] = {}
        self._devices: dict[int, int] = {}

    def add(self, batch: EventBatch) -> None:
        """Adds the spans of a batch."""
        events = spans(batch.events)
        if not len(events):
            return
        key = np.zeros(len(events), [("name", "<u4"), ("category", "<u4"), ("device", "<i8"), ("shapes", "<u4")])
        key["name"], key["category"] = events["name"], events["category"]
        key["device"] = self._devices_of(events["track"])
        key["shapes"] = self._shapes_of(events, batch.args)
        found, place = np.unique(key, return_inverse=True)
        counts = np.bincount(place, minlength=len(found))
        totals = np.zeros(len(found), np.int64)
        np.add.at(totals, place, events["dur"])
        for each, count, total in zip(found.tolist(), counts.tolist(), totals.tolist(), strict=True):
            sums = self._sums[each]
            sums[0] += count
            sums[1] += total

    def merge(self, other: OperatorTable) -> None:
        """Adds the rows of another table."""
        texts = list(other._shapes)
        for (name, category, device, shapes), (count, total) in other._sums.items():
            number = self._shapes.setdefault(texts[shapes], len(self._shapes))
            sums = self._sums[name, category, device, number]
            sums[0] += count
            sums[1] += total

    def rows(self) -> list[OperatorRow]:
        """Operators, the longest first; the program's spans if there are none."""
        texts = list(self._shapes)
        rows = [
            OperatorRow(
                name=strings.text(name),
                category=strings.text(category),
                device=None if device < 0 else device,
                shapes=texts[shapes],
                count=count,
                total_ns=total,
            )
            for (name, category, device, shapes), (count, total) in self._sums.items()
        ]
        chosen = [row for row in rows if row.category in OPERATORS] or [
            row for row in rows if row.category not in ("task", "python_function")
        ]
        return sorted(chosen, key=lambda row: (-row.total_ns, row.name, row.shapes))

    def _devices_of(self, track: Any) -> NDArray[np.int64]:
        found, place = np.unique(track, return_inverse=True)
        for each in found.tolist():
            if each not in self._devices:
                entry = tracks.get(each)
                stream = entry is not None and entry.kind is TrackKind.STREAM
                self._devices[each] = entry.pid if entry is not None and stream else -1
        return np.array([self._devices[each] for each in found.tolist()], np.int64)[place]

    def _shapes_of(self, events: Block, heap: bytes) -> NDArray[np.uint32]:
        shapes = np.zeros(len(events), np.uint32)
        may_have = (events["args_len"] > 0) & ((events["flags"] & int(Flag.ARG_INLINE)) == 0)
        may_have &= in_categories(events, OPERATORS)
        for index in np.flatnonzero(may_have).tolist():
            at, length = int(events["args_at"][index]), int(events["args_len"][index])
            text = heap[at : at + length]
            number = self._numbers.get(text)
            if number is None:
                found: Any = _core.decode_arguments(heap, at, length).get(SHAPES)
                number = self._shapes.setdefault("" if found is None else str(found), len(self._shapes))
                if len(self._numbers) < MOST_ARGUMENTS:
                    self._numbers[text] = number
            shapes[index] = number
        return shapes


def by_type(rows: Iterable[OperatorRow]) -> list[tuple[str, int, int]]:
    """(type, count, total in ns), the longest first."""
    sums = _sums(rows, lambda row: row.type)
    return sorted(((kind, *sums[kind]) for kind in sums), key=lambda each: (-each[2], each[0]))


def _sums(rows: Iterable[OperatorRow], key: Callable[[OperatorRow], K]) -> dict[K, tuple[int, int]]:
    """Count and total in ns of the rows of each key."""
    sums: dict[K, tuple[int, int]] = {}
    for row in rows:
        count, total = sums.get(key(row), (0, 0))
        sums[key(row)] = count + row.count, total + row.total_ns
    return sums


class OperatorFiles(Product):
    """Writes `cpu_op_detail_info_<device>.csv`, `cpu_op_type_info_<device>.csv` and `operator_details.csv`."""

    name = "operator tables"

    def __init__(self, directory: Path, device: int) -> None:
        super().__init__(directory)
        self.table = OperatorTable()
        self._device = device

    async def add(self, batch: EventBatch) -> None:
        self.table.add(batch)

    async def finish(self, window: Window) -> tuple[Path, ...]:
        rows = self.table.rows()
        if not rows:
            return ()
        steps = max(len(window.steps), 1)
        whole = sum(row.total_ns for row in rows) or 1
        detail = write_csv(
            self.directory / f"cpu_op_detail_info_{self._device}.csv",
            DETAIL,
            (
                (row.side, row.type, row.short, row.name, row.count, _ms(row.total_ns), _ms(row.total_ns / row.count),
                 f"{row.total_ns / whole:.6g}", row.subgraph, self.run.pid)
                for row in _without_shapes(rows)
            ),
        )  # fmt: skip
        types = write_csv(
            self.directory / f"cpu_op_type_info_{self._device}.csv",
            TYPE,
            (
                (kind, count, f"{count / steps:.6g}", _ms(total), _ms(total / count), f"{total / whole:.6g}")
                for kind, count, total in by_type(rows)
            ),
        )
        shaped = sorted({(row.name, row.shapes) for row in rows if row.shapes})
        shapes = (
            (write_csv(self.directory / "operator_details.csv", ("Name", "Input Shapes"), shaped),) if shaped else ()
        )
        return (detail, types, *shapes)


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.6f}"


def _without_shapes(rows: list[OperatorRow]) -> list[OperatorRow]:
    merged = [
        OperatorRow(name=name, category=category, device=device, shapes="", count=count, total_ns=total)
        for (name, category, device), (count, total) in _sums(
            rows, lambda row: (row.name, row.category, row.device)
        ).items()
    ]
    return sorted(merged, key=lambda row: (-row.total_ns, row.name))


def find_operators(
    rows: Sequence[OperatorRow], name: str | None, device: int | None, shape: str | None, own: int
) -> tuple[OperatorRow, ...]:
    """Rows whose operator, device or shapes fit; operators of the host belong to the device `own`.

    Raises:
        RuntimeError: if no operator has the name, with or without scope, or the kind; names the nearest.
    """
    found = [row for row in rows if name is None or name in (row.type, row.short, row.name)]
    if name is not None and not found:
        types = sorted({row.type for row in rows})
        raise RuntimeError(f"no operator {name!r} was recorded{did_you_mean(name, types[:50])}")
    return tuple(
        row
        for row in found
        if (device is None or device == (own if row.device is None else row.device))
        and (shape is None or shape == row.shapes)
    )


def operators_as_json(found: Mapping[str, Sequence[OperatorRow]], device: int) -> str:
    """The answer of `op_analyse`: rows by name, one for each side and shape; times in µs."""
    answer: dict[str, object] = {}
    for name, rows in found.items():
        sums = _sums(rows, lambda row: ("cpu" if row.device is None else "device", row.shapes))
        answer[name] = [
            {
                "op_side": side,
                "input_shape": shapes,
                "op_occurrences": count,
                "op_total_time(us)": total / 1000,
                "op_avg_time(us)": total / 1000 / count,
            }
            for (side, shapes), (count, total) in sums.items()
        ]
    return json.dumps({**answer, "device_id": str(device)}, ensure_ascii=False)

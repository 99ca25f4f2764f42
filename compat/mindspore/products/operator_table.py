"""The table of operators: how often each ran, with what shapes, and how long."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.backends.mindspore.blocks import SHAPES
from stepscope.compat.mindspore.products.base import OPERATORS, in_categories, spans
from stepscope.runtime import _core
from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.record import Block, EventBatch, Flag
from stepscope.runtime.events.tracks import TrackKind

KEPT_ARGUMENTS = 1 << 14
"""Different arguments whose meaning is remembered."""


class OperatorRow(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of one operator with inputs of the same shapes."""

    name: str
    """With its scope, as in `Default/fc-Dense/MatMul-op1`."""
    category: str
    device: int | None
    """Number of the device; `None` for operators of the host."""
    shapes: str
    """Of the inputs; empty where they are not known."""
    count: int
    total_ns: int

    @property
    def short(self) -> str:
        """The name without its scope."""
        return self.name.rpartition("/")[2]

    @property
    def type(self) -> str:
        """Its kind: the name without scope and number."""
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
        self._known: dict[bytes, int] = {}
        self._devices: dict[int, int] = {}

    def add(self, batch: EventBatch) -> None:
        """Takes the spans of a batch."""
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
        """Adds what another table holds."""
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
                known = tracks.get(each)
                stream = known is not None and known.kind is TrackKind.STREAM
                self._devices[each] = known.pid if known is not None and stream else -1
        return np.array([self._devices[each] for each in found.tolist()], np.int64)[place]

    def _shapes_of(self, events: Block, heap: bytes) -> NDArray[np.uint32]:
        shapes = np.zeros(len(events), np.uint32)
        held = (events["args_len"] > 0) & ((events["flags"] & int(Flag.ARG_INLINE)) == 0)
        held &= in_categories(events, OPERATORS)
        for index in np.flatnonzero(held).tolist():
            at, length = int(events["args_at"][index]), int(events["args_len"][index])
            text = heap[at : at + length]
            number = self._known.get(text)
            if number is None:
                shape = _text(_core.decode_arguments(heap, at, length).get(SHAPES))
                number = self._shapes.setdefault(shape, len(self._shapes))
                if len(self._known) < KEPT_ARGUMENTS:
                    self._known[text] = number
            shapes[index] = number
        return shapes


def _text(shapes: Any) -> str:
    return "" if shapes is None else shapes if isinstance(shapes, str) else str(shapes)


def by_type(rows: Iterable[OperatorRow]) -> list[tuple[str, int, int]]:
    """(type, count, total in ns), the longest first."""
    sums: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    for row in rows:
        sums[row.type][0] += row.count
        sums[row.type][1] += row.total_ns
    return sorted(((kind, count, total) for kind, (count, total) in sums.items()), key=lambda each: (-each[2], each[0]))

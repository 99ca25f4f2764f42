"""The spans of the victim in a journal."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.runtime import strings
from stepscope.runtime.events import Block, EventBatch, Flag, Kind
from stepscope.runtime.journal.reader import JournalReader
from tests.torture.diary import LANES, lane_name

Numbers = NDArray[np.int64]


class Found:
    """What a journal tells of the lanes.

    Args:
        journal: the file; that it is not whole is one of `problems`.
    """

    def __init__(self, journal: Path) -> None:
        self.open: Counter[int] = Counter()
        """Spans of each lane that had not ended."""
        self.gaps = 0
        """Events that gaps count."""
        self.problems: tuple[str, ...] = ()
        self._lanes = {strings.intern(lane_name(lane)): lane for lane in range(LANES)}
        self._ended: list[Any] = []
        self._opened: list[Any] = []
        with JournalReader(journal) as reader:
            for item in reader:
                if isinstance(item, EventBatch):
                    self._add(item)
            if reader.end is None or reader.damage:
                self.problems += (f"the journal is not whole: {reader.damage}",)
        self._settle()

    def ended(self, lane: int) -> Numbers:
        """Numbers of the spans of a lane whose end is there, in order, each once."""
        numbers: Numbers = np.unique(self._rows[self._rows[:, 0] == lane, 1])
        return numbers

    def _add(self, batch: EventBatch) -> None:
        events = batch.events
        self.gaps += int(events["id"][events["kind"] == int(Kind.GAP)].sum())
        spans = events[(events["kind"] == int(Kind.SPAN)) & np.isin(events["name"], list(self._lanes))]
        lanes = np.array([self._lanes[int(name)] for name in spans["name"]], np.int64)
        ids = spans["id"].astype(np.int64)
        windows = np.full(len(spans), batch.window, np.int64)
        opened = spans["flags"] & int(Flag.OPEN) != 0
        self._opened.append(np.stack([lanes, ids, windows], axis=1)[opened])
        self._ended.append(np.stack([lanes, _numbers(spans, batch.args), ids, windows], axis=1)[~opened])

    def _settle(self) -> None:
        self._rows: Any = np.concatenate([np.empty((0, 4), np.int64), *self._ended])
        opened: Any = np.concatenate([np.empty((0, 3), np.int64), *self._opened])
        parts = np.concatenate([self._rows[:, 2:], opened[:, 1:]])
        # A span that crosses the border of two windows has a part in each, all with its id.
        twice = len(parts) - len(np.unique(parts, axis=0))
        spans = np.unique(self._rows[:, :3], axis=0)
        twice += len(spans) - len(np.unique(spans[:, :2], axis=0))
        if twice:
            self.problems += (f"{twice} spans came back twice",)
        for lane, _ in np.unique(opened[~np.isin(opened[:, 1], self._rows[:, 2])][:, :2], axis=0):
            self.open[int(lane)] += 1


def _numbers(spans: Block, args: bytes) -> Numbers:
    """The first argument of each span, an integer; -1 of those that have none."""
    numbers = np.full(len(spans), -1, np.int64)
    inline = spans["flags"] & int(Flag.ARG_INLINE) != 0
    numbers[inline] = spans["args_len"][inline]
    held = ~inline & (spans["args_len"] >= 16)
    if held.any():
        heap = np.frombuffer(args, np.uint8)
        at = spans["args_at"][held].astype(np.int64)[:, None] + np.arange(8, 16)
        numbers[held] = np.ascontiguousarray(heap[at]).view("<i8").reshape(-1)
    return numbers

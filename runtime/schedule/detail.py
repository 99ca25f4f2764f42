"""Levels of detail: how much of what was requested is recorded, and which events of a block that leaves out."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.runtime import _core
from stepscope.runtime.events.intervals import Mask
from stepscope.runtime.events.record import Block, Kind
from stepscope.runtime.events.survey import OPERATORS_CATEGORY

EVENTS, OPERATORS = _core.RECORD_EVENTS, _core.RECORD_OPERATORS
EVERYTHING = EVENTS | OPERATORS
"""All kinds of events that the recorder can record, as bits."""

_MAX_CHANGES = 1 << 16
"""Changes of what is wanted that events are sorted by; older ones are let go. Events come within seconds."""


class Detail(msgspec.Struct, frozen=True):
    """One level of detail. Step marks are recorded at every level."""

    name: str
    operators: bool = True
    """Whether operators of frameworks are recorded."""
    every: int = 1
    """Events of the program are recorded in one step of so many, those with a number that it divides; 0: in none."""
    chosen: tuple[tuple[str, bool], ...] = ()
    """Options of backends with a method `choose`, and whether they are on, whatever the backends were made for."""
    shortest: int = 0
    """Operators that arrive live and took less, in ns, are left out."""
    requested: bool = False
    """Whether the program requested this level, so that no message reports it."""

    def wanted(self, step: int) -> int:
        """Kinds of events that are recorded in a step: the sum of `EVENTS` and `OPERATORS`, or 0."""
        return self.kinds if self.every and step % self.every == 0 else 0

    @property
    def kinds(self) -> int:
        """Kinds of events in the steps that are recorded."""
        return EVERYTHING if self.operators else EVENTS


FULL = Detail("full")
NO_OPERATORS = Detail("no operators", operators=False)
MARKS_ONLY = Detail("step marks only", operators=False, every=0)
LEVELS = (FULL, NO_OPERATORS, MARKS_ONLY)
"""Levels that an overhead budget chooses from, highest first."""


def are_operators(events: Block) -> Mask:
    """Which events are operators of a framework, as the recorder has them."""
    operators: Mask = events["category"] == OPERATORS_CATEGORY
    return operators


class DetailFilter:
    """Which events of the recorder a profiler wants, by the level of detail of the step that they began in.

    Other events were usually not recorded at all. They were if another profiler wanted them; this one leaves them
    out all the same, so that its output is what it would be alone.
    """

    def __init__(self) -> None:
        self._changes: list[tuple[int, Detail]] = []
        self._times: list[int] = []
        self._masks: list[tuple[int, int]] = []
        """For each of these times, the kinds of events that are recorded from then on, and the shortest operator, in ns."""
        self._arrays: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
        self._last_mark = 0
        self.left_out = 0
        """Events that another profiler had recorded, and that were left out here."""

    def change(self, at: int, detail: Detail) -> None:
        """The steps that begin at `at` (ns) or later have this detail."""
        self._changes.append((at, detail))
        del self._changes[:-_MAX_CHANGES]

    def add_marks(self, marks: Block) -> None:
        """Takes the profiler's step marks, in the order of their times; each is looked at once."""
        if not self._changes:
            return
        last = self._last_mark
        for at, step in zip(marks["ts"].tolist(), marks["step"].tolist(), strict=True):
            if at <= last:
                continue
            last = at
            number = bisect_right(self._changes, at, key=lambda change: change[0])
            detail = self._changes[number - 1][1] if number else FULL
            wanted = detail.wanted(step), detail.shortest
            if wanted != (self._masks[-1] if self._masks else (EVERYTHING, 0)):
                self._times.append(at)
                self._masks.append(wanted)
                self._arrays = None
        self._last_mark = last
        del self._times[:-_MAX_CHANGES], self._masks[:-_MAX_CHANGES]

    def wanted(self, events: Block, *, ended: bool = True) -> Mask | None:
        """Whether each event is wanted; `None`: all are. `ended`: whether they have their durations."""
        if not self._masks:
            return None
        if self._arrays is None:
            self._arrays = np.array(self._times, np.int64), np.array(self._masks, np.int64)
        times, masks = self._arrays
        kind: Any = events["kind"]
        at = np.searchsorted(times, events["ts"], "right") - 1
        mask = np.where(at < 0, EVERYTHING, masks[np.maximum(at, 0), 0])
        operators = are_operators(events)
        what = np.where(operators, OPERATORS, EVENTS)
        chosen: Mask = ((mask & what) != 0) | (kind == int(Kind.STEP)) | (kind == int(Kind.GAP))
        if ended and masks[:, 1].any():
            shortest = np.where(at < 0, 0, masks[np.maximum(at, 0), 1])
            chosen &= ~(operators & (kind == int(Kind.SPAN)) & (events["dur"] < shortest))
        return None if chosen.all() else chosen

    def keep(self, events: Block) -> Block:
        """The events that are wanted; the others are counted."""
        chosen = self.wanted(events)
        if chosen is None:
            return events
        self.left_out += int(len(events) - chosen.sum())
        wanted: Block = events[chosen]
        return wanted

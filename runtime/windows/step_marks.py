"""The step marks of a window, which assign events to steps, and the spans of its steps."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.runtime import _core
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import EVENT_DTYPE, Block, Flag, Kind, empty_block
from stepscope.runtime.windows.window import Step

MAX_MARKS = 1 << 20
"""Marks of a window, 24 bytes each. A longer window drops the oldest."""

_MARK = np.dtype([("ts", "<i8"), ("parent", "<u8"), ("number", "<i4"), ("track", "<u4")])


class StepMark(msgspec.Struct, frozen=True, gc=False):
    """A step begins."""

    ts: int
    number: int
    track: int = 0
    parent: int = 0
    """Id of the span around the call, 0 = none."""


class StepMarks:
    """Marks in the order of their times, in arrays, for loops of a million steps a second."""

    def __init__(self, first: StepMark) -> None:
        self._marks: NDArray[np.void] = np.zeros(64, _MARK)
        self._marks[0] = (first.ts, first.parent, first.number, first.track)
        self._count = 1
        self._spans = 0

    def __len__(self) -> int:
        return self._count

    @property
    def pending(self) -> bool:
        """Whether a step has ended for which `new_spans` made no span yet."""
        return self._count - self._spans > 1

    @property
    def last(self) -> StepMark:
        """The latest mark."""
        mark = self._marks[self._count - 1]
        return StepMark(int(mark["ts"]), int(mark["number"]), int(mark["track"]), int(mark["parent"]))

    def add(self, events: Block, end: int) -> None:
        """Adds the STEP events that are later than the last mark and earlier than `end`. They are in the order of their times."""
        latest = self._marks["ts"][self._count - 1]
        if not len(events) or events["ts"][-1] <= latest:
            return
        events = events[(events["ts"] > latest) & (events["ts"] < end)]
        if not len(events):
            return
        self._make_room(len(events))
        new = self._marks[self._count : self._count + len(events)]
        for theirs, ours in (("ts", "ts"), ("parent", "parent"), ("step", "number"), ("track", "track")):
            new[ours] = events[theirs]
        self._count += len(events)

    def tracks(self) -> set[int]:
        """Tracks of the threads and tasks that began the steps."""
        found: list[int] = np.unique(self._marks["track"][: self._count]).tolist()
        return set(found)

    def _make_room(self, more: int) -> None:
        if self._count > MAX_MARKS and self._spans > MAX_MARKS // 2:
            surplus = min(self._count - MAX_MARKS // 2, self._spans)
            self._marks[: self._count - surplus] = self._marks[surplus : self._count].copy()
            self._count -= surplus
            self._spans -= surplus
        if self._count + more > len(self._marks):
            grown = np.zeros(max(2 * len(self._marks), self._count + more), _MARK)
            grown[: self._count] = self._marks[: self._count]
            self._marks = grown

    def cut(self, end: int) -> None:
        """Removes marks from the time `end` on, in ns, but for the first one."""
        self._count = max(int(np.searchsorted(self._marks["ts"][: self._count], end)), 1)
        self._spans = min(self._spans, self._count)

    def steps_at(self, times: NDArray[np.int64]) -> NDArray[np.int32]:
        """The step number of each time, in ns."""
        marks = self._marks[: self._count]
        counts = _core.count_until(np.ascontiguousarray(marks["ts"]), np.ascontiguousarray(times))
        at = np.frombuffer(counts, np.int64) - 1
        numbers: Any = marks["number"][np.maximum(at, 0)]
        return numbers  # type: ignore[no-any-return]

    def with_steps(self, events: Block) -> Block:
        """A copy in which each event has the number of the step in which it began."""
        marks = self._marks[: self._count]
        begins, numbers = np.ascontiguousarray(marks["ts"]), np.ascontiguousarray(marks["number"])
        copied: Block = np.frombuffer(_core.with_steps(np.ascontiguousarray(events), begins, numbers), EVENT_DTYPE)
        return copied

    def steps(self, end: int) -> tuple[Step, ...]:
        """The steps; the last one ends at `end`."""
        marks = self._marks[: self._count]
        ends = [*marks["ts"][1:].tolist(), end]
        return tuple(
            Step(number, ts, until)
            for number, ts, until in zip(marks["number"].tolist(), marks["ts"].tolist(), ends, strict=True)
            if until > ts
        )

    def nested(self, end: int) -> tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.int64]]:
        """Tracks, begins and ends of the steps that nest on the track of the training loop; the last one ends at `end`."""
        marks, following, nests = self._ended(0, end)
        return marks["track"][nests], marks["ts"][nests], following["ts"][nests]

    def _ended(self, first: int, end: int | None) -> tuple[NDArray[np.void], NDArray[np.void], NDArray[np.bool_]]:
        """Steps from index `first` on: their marks, the marks that end them, and whether each nests."""
        marks = self._marks[first : self._count]
        following = marks[1:]
        if end is not None and len(marks) and end > int(marks["ts"][-1]):
            following = np.empty_like(marks)
            following[:-1] = marks[1:]
            # The span that is open at the end of the last step is not known; most likely it is that of its begin.
            following[-1] = marks[-1]
            following["ts"][-1] = end
        marks = marks[: len(following)]
        nests = (
            (marks["track"] != 0) & (marks["track"] == following["track"]) & (marks["parent"] == following["parent"])
        )
        return marks, following, nests

    def new_spans(self, fallback_track: int, end: int | None = None) -> Block:
        """A span for each step that ended since the last call; `end`, if any, ends the last one.

        A span is on the track of the training loop if it nests there, that is, if the same span is open at its begin and its
        end. Otherwise it is on `fallback_track`.
        """
        marks, following, nests = self._ended(self._spans, end)
        self._spans += len(marks)
        block = empty_block(len(marks))
        block["ts"], block["dur"], block["step"] = marks["ts"], following["ts"] - marks["ts"], marks["number"]
        block["track"] = np.where(nests, marks["track"], fallback_track)
        block["parent"] = np.where(nests, marks["parent"], 0)
        block["name"], block["category"] = strings.intern("ProfilerStep"), strings.category("user_annotation")
        block["kind"], block["flags"] = Kind.SPAN, int(Flag.NUMBERED)
        return block

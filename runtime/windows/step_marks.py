"""Messages of the stepping thread: a step, a window begins or ends; and the step marks of a window, which assign events to steps."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.runtime import _core
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import EVENT_DTYPE, Block, distinct
from stepscope.runtime.events.survey import Survey
from stepscope.runtime.windows.window import Step

_STEP = strings.intern("ProfilerStep"), strings.category("user_annotation")
"""Name and category of the spans of steps."""
_NEVER = -(1 << 63)

MAX_MARKS = 1 << 20
"""Marks of a window, 24 bytes each. A longer window drops the oldest."""

FEW_MARKS = 64
"""Up to so many marks of a window, all are passed to the core: a search for the first one that matters costs more."""


class StepMark(msgspec.Struct, frozen=True, gc=False):
    """A step begins."""

    ts: int
    number: int
    track: int = 0
    parent: int = 0
    """Id of the span around the call, 0 = none."""


class WindowBegins(msgspec.Struct, frozen=True):
    """A window begins with this step."""

    mark: StepMark
    armed: dict[str, Any] | None = None
    """Description of the request that armed it, for the window's metadata."""


class WindowEnds(msgspec.Struct, frozen=True):
    """The open window ends."""

    at: int
    complete: bool
    reason: str = ""
    cut_short: bool = False
    """The run ended after a call of `step()`. Events after that call belong to no step."""
    needs_last: bool = False
    """If it is cut short, it is incomplete: the schedule includes the step that was not ended."""
    armed: dict[str, Any] | None = None
    """Additions to the description of the request in the window's metadata."""


class _Columns(NamedTuple):
    """Marks as arrays. A drain takes views of the newest marks, so that its cost does not grow with the run."""

    ts: NDArray[Any]
    parent: NDArray[Any]
    number: NDArray[Any]
    track: NDArray[Any]

    @classmethod
    def empty(cls, room: int) -> _Columns:
        return cls(
            np.zeros(room, np.int64), np.zeros(room, np.uint64), np.zeros(room, np.int32), np.zeros(room, np.uint32)
        )

    def part(self, first: int, end: int | None) -> _Columns:
        """Views of a range of marks."""
        return _Columns(self.ts[first:end], self.parent[first:end], self.number[first:end], self.track[first:end])

    def put(self, at: int, marks: _Columns) -> None:
        end = at + len(marks.ts)
        self.ts[at:end], self.parent[at:end] = marks.ts, marks.parent
        self.number[at:end], self.track[at:end] = marks.number, marks.track


class StepMarks:
    """Marks in the order of their times, in arrays, for loops of a million steps a second."""

    def __init__(self, first: StepMark) -> None:
        self._columns = _Columns.empty(FEW_MARKS)
        """With room for further marks."""
        for column, value in zip(self._columns, (first.ts, first.parent, first.number, first.track), strict=True):
            column[0] = value
        self._count = 1
        self._spans: int = 0

    def __len__(self) -> int:
        return self._count

    @property
    def _marks(self) -> _Columns:
        return self._columns.part(0, self._count)

    @property
    def pending(self) -> bool:
        """Whether a step has ended for which `new_spans` made no span yet."""
        return self._count - self._spans > 1

    @property
    def last_ns(self) -> int:
        """When the latest step began, in ns."""
        return int(self._columns.ts[self._count - 1])

    def add(self, events: Block, end: int) -> None:
        """Adds the STEP events that are later than the last mark and earlier than `end`. They are in the order of their times."""
        ts, latest = events["ts"], self._columns.ts[self._count - 1]
        if not len(ts) or ts[-1] <= latest:
            return
        if ts[0] <= latest or ts[-1] >= end:
            events = events[(ts > latest) & (ts < end)]
        if not len(events):
            return
        self._make_room(len(events))
        self._columns.put(self._count, _Columns(events["ts"], events["parent"], events["step"], events["track"]))
        self._count += len(events)

    def tracks(self) -> set[int]:
        """Tracks of the threads and tasks that began the steps."""
        return set(distinct(self._marks.track))

    def _make_room(self, more: int) -> None:
        if self._count > MAX_MARKS and self._spans > MAX_MARKS // 2:
            surplus = min(self._count - MAX_MARKS // 2, self._spans)
            newest = self._columns.part(surplus, self._count)
            self._columns.put(0, _Columns(*map(np.copy, newest)))
            self._count -= surplus
            self._spans -= surplus
        if self._count + more > len(self._columns.ts):
            grown = _Columns.empty(max(2 * len(self._columns.ts), self._count + more))
            grown.put(0, self._marks)
            self._columns = grown

    def cut(self, end: int) -> None:
        """Removes marks from the time `end` on, in ns, but for the first one."""
        self._count = max(int(np.searchsorted(self._marks.ts, end)), 1)
        self._spans = min(self._spans, self._count)

    def steps_at(self, times: NDArray[np.int64]) -> NDArray[np.int32]:
        """The step number of each time, in ns."""
        marks = self._marks
        at = np.frombuffer(_core.count_until(marks.ts, np.ascontiguousarray(times)), np.int64) - 1
        return marks.number[np.maximum(at, 0)]

    def with_steps(self, events: Block, found: Survey, *, in_place: bool = False) -> tuple[Block, Survey]:
        """A copy in which each event has the number of the step in which it began, and its survey. `found` is that of the block.
        With `in_place`, the block itself gets these numbers."""
        # numpy would hand over the interpreter's lock here, and get it back after 5 ms.
        first = (
            max(bisect_right(self._columns.ts, found.first_ns, hi=self._count) - 1, 0) if self._count > FEW_MARKS else 0
        )
        ts, number = self._columns.ts[first : self._count], self._columns.number[first : self._count]
        numbered, first_step, last_step = _core.with_steps(np.ascontiguousarray(events), ts, number, in_place)
        block: Block = numbered if in_place else np.frombuffer(numbered, EVENT_DTYPE)
        return block, found._replace(first_step=first_step, last_step=last_step)

    def steps(self, end: int) -> tuple[Step, ...]:
        """The steps; the last one ends at `end`."""
        numbers, begins = self._columns.number[: self._count].tolist(), self._columns.ts[: self._count].tolist()
        steps = map(Step, numbers, begins, [*begins[1:], end])
        return tuple([step for step in steps if step.end_ns > step.start_ns])

    def nested(self, end: int) -> tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.int64]]:
        """Tracks, begins and ends of the steps that may nest on the track of the training loop; the last one ends at `end`."""
        marks, following = self._columns.part(0, self._count), self._columns.part(1, self._count)
        ends, track, parent = following.ts, following.track, following.parent
        if end > int(marks.ts[-1]):
            # Whether the last step nests is known when the window closes. Until then, events keep clear of it.
            ends = np.append(ends, end)
            track, parent = np.append(track, marks.track[-1]), np.append(parent, marks.parent[-1])
        marks = marks.part(0, len(ends))
        nests = (marks.track != 0) & (marks.track == track) & (marks.parent == parent)
        return marks.track[nests], marks.ts[nests], ends[nests]

    def new_spans(self, fallback_track: int, end: int | None = None) -> Block:
        """A span for each step that ended since the last call; `end`, if any, ends the last one.

        A span is on the track of the training loop if the same span is open at its begin and its end, which is assumed of the last
        one. Otherwise it is on `fallback_track`.
        """
        ts, parent, number, track = self._columns.part(self._spans, self._count)
        spans = _core.step_spans(ts, parent, number, track, _NEVER if end is None else end, fallback_track, *_STEP)
        block: Block = np.frombuffer(spans, EVENT_DTYPE)
        self._spans += len(block)
        return block

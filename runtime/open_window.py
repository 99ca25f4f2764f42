"""A window while it is open: its borders, steps, accounts and running table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import msgspec
import numpy as np

from stepscope.runtime import strings
from stepscope.runtime.aggregates import Aggregates
from stepscope.runtime.events import NO_STEP, Block, Flag, Kind, empty_block
from stepscope.runtime.intervals import FOREVER, Interval, clip, touching, without
from stepscope.runtime.ledger import SourceLedger
from stepscope.runtime.window import Step

STEPS = "steps"
"""Source of the spans of steps."""


class StepMark(msgspec.Struct, frozen=True, gc=False):
    """A step begins."""

    ts: int
    number: int
    track: int = 0
    parent: int = 0
    """The span that is open around the call, 0 = none."""


class OpenWindow:
    """Collects what belongs to one window. No clock, no I/O: it is told everything."""

    def __init__(self, index: int, first: StepMark) -> None:
        self.index = index
        self.start = first.ts
        self.end: int | None = None
        self.complete = True
        self.reason = ""
        self.cut_short = False
        self.waiting_since: int | None = None
        """When the end became known, in ns."""
        self.table = Aggregates()
        self.gaps: list[tuple[int, int | None]] = []
        self.superseded: set[int] = set()
        """Spans that were written as open when the window closed: their later records are not news."""
        self._marks = [first]
        self._steps_written = 0
        self._latest = first.ts
        self._accepted: Counter[str] = Counter()
        self._dropped: dict[str, Counter[str]] = {}

    @property
    def interval(self) -> Interval:
        """From the start to the end, or for ever while the end is not known."""
        return self.start, FOREVER if self.end is None else self.end

    def add_mark(self, mark: StepMark) -> None:
        """Takes a step mark; those of the window's first step and beyond its end change nothing."""
        if self._marks[-1].ts < mark.ts < self.interval[1]:
            self._marks.append(mark)

    def take(self, source: str, events: Block) -> Block:
        """The events, or parts of them, that lie in this window, with their steps; counts them."""
        intervals = without(self.interval, [(start, FOREVER if end is None else end) for start, end in self.gaps])
        start, end = self.interval
        ts = events["ts"]
        simple = len(intervals) == 1 and int(ts.min()) >= start and int((ts + np.maximum(events["dur"], 0)).max()) < end
        # A step stays one span, whatever pauses are in it: viewers count steps.
        mine = events.copy() if simple or source == STEPS else clip(events, intervals)
        if not len(mine):
            return mine
        gaps = mine["kind"] == Kind.GAP
        counted = len(mine)
        if gaps.any():
            own = events[(events["kind"] == Kind.GAP) & touching(events, (start, end)) & (events["ts"] >= start)]
            self.count_dropped(source, "overflow", int(own["id"].sum()))
            counted -= int(gaps.sum())
        self._accepted[source] += counted
        self._assign_steps(mine)
        self._latest = max(self._latest, int(mine["ts"].max()))
        self.table.update(mine)
        mine.flags.writeable = False
        return mine

    def _assign_steps(self, events: Block) -> None:
        marks = self._marks
        if len(marks) == 1:
            events["step"] = marks[0].number
            return
        at = np.searchsorted([mark.ts for mark in marks], events["ts"], side="right") - 1
        events["step"] = np.array([mark.number for mark in marks], np.int32)[np.maximum(at, 0)]

    def take_open(self, open_spans: Block) -> Block:
        """Spans that have not ended when the window closes, cut at its end and flagged; later records are ignored."""
        spans = open_spans[touching(open_spans, self.interval)]
        if not len(spans):
            return spans
        taken = self.take("recorder", spans)
        self.superseded.update(int(number) for number in taken["id"])
        return taken

    def trim(self) -> None:
        """Leaves out the last step if the run ended right after it had begun: it holds nothing, and is no step.

        A loop that calls `step()` at its end begins a step that never comes.
        """
        if self.cut_short and len(self._marks) > 1 and self._latest <= self._marks[-1].ts:
            self.end = self._marks.pop().ts

    @property
    def empty(self) -> bool:
        """Whether it was begun by the last `step()` of a run and holds nothing."""
        return self.cut_short and len(self._marks) == 1 and self._latest <= self.start

    def count_dropped(self, source: str, reason: str, count: int) -> None:
        """Notes `count` events that were lost."""
        if count:
            self._dropped.setdefault(source, Counter())[reason] += count

    def ledger(self) -> dict[str, SourceLedger]:
        """Accounts per source."""
        sources = sorted({*self._accepted, *self._dropped})
        return {
            source: SourceLedger(
                produced=self._accepted[source] + sum(self._dropped.get(source, Counter()).values()),
                accepted=self._accepted[source],
                dropped=dict(self._dropped.get(source, {})),
            )
            for source in sources
        }

    def steps(self) -> tuple[Step, ...]:
        """The recorded steps; the last one ends with the window."""
        return tuple(Step(mark.number, mark.ts, until.ts) for mark, until in self._pairs())

    def _pairs(self) -> Iterator[tuple[StepMark, StepMark]]:
        marks = self._marks
        if self.end is not None and self.end > marks[-1].ts:
            # Where the last step ends the same span is open as where it began, as far as is known.
            marks = [*marks, StepMark(self.end, marks[-1].number + 1, marks[-1].track, marks[-1].parent)]
        yield from pairwise(marks)

    def new_step_spans(self, fallback_track: int, *, last: bool = False) -> Block:
        """A span for each step that has ended since the last call; with `last`, also for the one that ends the window.

        It is drawn on the track of the training loop if it nests there: if the same span is open at its begin and
        its end. Otherwise it goes to `fallback_track`.
        """
        pairs = list(self._pairs() if last else pairwise(self._marks))[self._steps_written :]
        self._steps_written += len(pairs)
        block = empty_block(len(pairs))
        category = strings.category("user_annotation")
        for row, (mark, until) in zip(block, pairs, strict=True):
            nests = mark.track and (mark.track, mark.parent) == (until.track, until.parent)
            row["ts"], row["dur"], row["step"] = mark.ts, until.ts - mark.ts, mark.number
            row["name"], row["category"] = strings.intern(f"ProfilerStep#{mark.number}"), category
            row["track"] = mark.track if nests else fallback_track
            row["parent"] = mark.parent if nests else 0
            row["kind"] = Kind.SPAN
        return block

    def gap_event(self, gap: Interval, track: int) -> Block:
        """The pause as an event."""
        block = empty_block(1)
        block["ts"], block["dur"], block["kind"] = gap[0], gap[1] - gap[0], Kind.GAP
        block["name"], block["track"], block["step"] = strings.intern("paused"), track, NO_STEP
        block["flags"] = 0 if gap[1] < self.interval[1] else int(Flag.CLIPPED)
        return block

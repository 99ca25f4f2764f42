"""A window while it is open: its borders, steps, accounts and running table."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

import numpy as np

from stepscope.runtime.accounting.ledger import SourceLedger
from stepscope.runtime.events import strings
from stepscope.runtime.events.intervals import FOREVER, Interval, clip, ends, touching, touching_any, without
from stepscope.runtime.events.nesting import Rows
from stepscope.runtime.events.record import NO_STEP, Block, EventBatch, Flag, Kind, empty_block
from stepscope.runtime.events.survey import Survey, remember_survey, survey
from stepscope.runtime.windows.step_marks import StepMark, StepMarks
from stepscope.runtime.windows.window import Step
from stepscope.runtime.windows.window_tables import WindowTable

RECORDER = "recorder"
STEPS = "steps"
"""Source of the spans of steps."""
MAX_GAPS = 4096
"""Pauses of a window at which spans are cut. A window with more forgets the oldest."""

MAX_WITHHELD = 1 << 14
"""Events of a window that may wait until another event begins in it."""


class OpenWindow:
    """Collects the events of one window. A state machine without clock and I/O."""

    def __init__(self, index: int, first: StepMark, *, several: bool = False, table: WindowTable | None = None) -> None:
        """
        Args:
            several: whether other sources than the recorder may have events on the recorder's tracks.
            table: receives all accepted events, and is finished with the window.
        """
        self.index = index
        self.start = first.ts
        self.end: int | None = None
        """When it ends; `None` while that is not known. `end_at` sets it."""
        self.interval: Interval = first.ts, FOREVER
        """From the start to the end; without limit while the end is not known."""
        self.complete = True
        self.reason = ""
        self.notes: list[str] = []
        """Further diagnostics."""
        self.facts: dict[str, Any] = {}
        """Additions to the run's metadata."""
        self._missing: dict[str, Counter[str]] = {}
        self.cut_short = self.needs_last = self.ready = False
        self.waiting_since: int | None = None
        """When the end became known, in ns."""
        self._withheld: list[EventBatch] | None = []
        """Batches of step marks, and of spans that began before the window. `None` once another event began in the window.

        The last `step()` of a run may begin a window without any event. No exporter gets such a window.
        """
        self.table = table
        self.gaps: deque[tuple[int, int | None]] = deque(maxlen=MAX_GAPS)
        self.superseded: set[int] = set()
        """Ids of spans that were written as open when the window closed. Their later records are ignored."""
        self._reaching: set[int] = set()
        """Ids of spans that reach the window's end."""
        self.events = 0
        """Accepted events and gaps, without spans of steps and quiet events."""
        self.gap_events = 0
        self.marks = StepMarks(first)
        self._rows = Rows() if several else None
        self._latest = first.ts
        self._accepted: Counter[str] = Counter()
        self._dropped: dict[str, Counter[str]] = {}

    def end_at(self, at: int) -> None:
        self.end = at
        self.interval = self.start, at

    @property
    def recorded(self) -> list[Interval]:
        """The window without its pauses."""
        return without(self.interval, self._pauses) if self.gaps else [self.interval]

    @property
    def _pauses(self) -> list[Interval]:
        return [(start, FOREVER if end is None else end) for start, end in self.gaps]

    def add_marks(self, events: Block) -> None:
        """Adds step marks, in order. Marks before the latest one and beyond the window's end are ignored."""
        self.marks.add(events, self.interval[1])

    def accept(self, source: str, events: Block, found: Survey | None = None, *, in_place: bool = False) -> Block:
        """Counts the events, or parts of events, within this window, and returns them with their step numbers. `found` is the
        survey of the block, if there is one. With `in_place`, the block may be changed."""
        intervals = self.recorded
        start, end = intervals[0] if len(intervals) == 1 else (0, 0)
        found = found or survey(events)
        if not (start < end and start <= found.first_ns and found.end_ns < end):
            events = clip(events, intervals)
            found = survey(events)
            if source == RECORDER and self.end is not None:
                last = (events["kind"] == int(Kind.SPAN)) & (ends(events) == self.end)
                self._reaching.update(events["id"][last].tolist())
        return self._count(source, events, found, in_place=in_place)

    def accept_launched(self, source: str, events: Block, before: int) -> Block:
        """Counts and returns whole events of a device, which the host launched before the time `before`. Events that began later
        get the step that ends at this time."""
        return self._count(source, events, survey(events), before)

    def _count(
        self, source: str, events: Block, found: Survey, before: int | None = None, *, in_place: bool = False
    ) -> Block:
        if not found.events:
            return events
        if found.gaps:
            self.count_dropped(source, "overflow", found.lost)
            self.gap_events += found.gaps
            self._latest = max(self._latest, found.end_ns)  # the lost events may be the last ones
        self._accepted[source] += found.events - found.gaps
        self.events += found.loud
        numbered, found = self.marks.with_steps(events, found, in_place=in_place)
        if before is None:
            remember_survey(numbered, found)
        else:
            numbered["step"] = self.marks.steps_at(np.minimum(numbered["ts"], before - 1))
        if self._rows is not None:
            self._rows.add(source, numbered, self.marks.nested(self.interval[1]) if source != RECORDER else None)
        self._latest = max(self._latest, found.loud_last_ns)
        if self.table is not None:
            self.table.update(numbered)
            self.table.apart += found.operators if source != RECORDER else 0
        numbered.flags.writeable = False
        return numbered

    def finish_table(self) -> None:
        """Finishes the table, after all events were accepted."""
        if self.table is not None:
            has_steps = self.marks.last_ns < self.steps_end or len(self.marks) > 1
            self.table.finish(*self.interval, self.steps_end if has_steps else None)

    def release(self, batch: EventBatch) -> list[EventBatch]:
        """Adds a batch, and returns the batches that may be exported now."""
        if not len(batch):
            return []
        if self._withheld is None:
            return [batch]
        self._withheld.append(batch)
        if survey(batch.events).program_last_ns <= self.start and self.withheld <= MAX_WITHHELD:
            return []
        return self.release_withheld()

    def release_withheld(self) -> list[EventBatch]:
        """Returns the withheld batches, and withholds no further ones."""
        batches, self._withheld = self._withheld or [], None
        return batches

    def accept_open_spans(self, open_spans: Block) -> Block:
        """Cuts spans that are open when the window closes at its end, and flags them. Later records of them are ignored."""
        spans = open_spans[touching(open_spans, self.interval)]
        if not len(spans):
            return spans
        accepted = self.accept(RECORDER, spans)
        self.superseded.update(int(number) for number in accepted["id"])
        return accepted

    def trim(self) -> None:
        """Ends the window with its last step if the run ended right after that, without further events."""
        if self.cut_short and len(self.marks) > 1 and self._latest <= self.marks.last_ns:
            self.end_at(self.marks.last_ns)

    @property
    def steps_end(self) -> int:
        """When its last step ended, in ns. Events after the last `step()` of a run are in the window, but in no step."""
        return self.marks.last_ns if self.cut_short else self.interval[1]

    @property
    def empty(self) -> bool:
        """Whether the last `step()` of a run began it, and no event followed."""
        return self._withheld is not None and self.cut_short and len(self.marks) == 1 and self._latest <= self.start

    @property
    def entered(self) -> int:
        """Number of accepted events, parts of events, steps and gaps."""
        return sum(self._accepted.values()) + self.gap_events

    @property
    def withheld(self) -> int:
        """Number of these that wait for another event in the window."""
        return 0 if self._withheld is None else sum(map(len, self._withheld))

    def count_dropped(self, source: str, reason: str, count: int) -> None:
        if count:
            self._dropped.setdefault(source, Counter())[reason] += count

    def count_missing(self, source: str, why: str, start: int, end: int) -> None:
        """Counts the time within the window for which a source has no events."""
        first, last = self.interval
        missing = min(end, last) - max(start, first)
        if missing > 0:
            self._missing.setdefault(source, Counter())[why] += missing

    @property
    def sources_incomplete(self) -> bool:
        """Whether some source did not record or deliver a part of the window."""
        return bool(self._missing)

    def missing_notes(self) -> list[str]:
        """A sentence for each source and reason."""
        return [
            f"incomplete: {source!r} has nothing of {ns / 1e6:,.3f} ms of the window: {why}"
            for source, times in self._missing.items()
            for why, ns in times.items()
        ]

    def ledger(self) -> dict[str, SourceLedger]:
        ledgers: dict[str, SourceLedger] = {}
        for source in sorted({*self._accepted, *self._dropped, *self._missing}):
            accepted, dropped = self._accepted[source], dict(self._dropped.get(source, {}))
            missing = dict(self._missing.get(source, {}))
            ledgers[source] = SourceLedger(accepted + sum(dropped.values()), accepted, dropped, missing=missing)
        return ledgers

    def steps(self) -> tuple[Step, ...]:
        """The recorded steps."""
        return self.marks.steps(self.steps_end)

    def step_spans(self, fallback_track: int, *, last: bool = False) -> Block:
        """A span for each step that ended since the last call; with `last`, also for the last step of the window.

        A step is also on `fallback_track` if a pause cuts the span around it, or if the span around the last step ends before it.
        """
        spans = self.marks.new_spans(fallback_track, self.steps_end if last else None)
        if self.gaps and len(spans):
            cut = (spans["parent"] != 0) & touching_any(spans, self._pauses)
            spans["track"][cut], spans["parent"][cut] = fallback_track, 0
        if last and len(spans) and self.marks.last_ns < self.steps_end:
            outer = int(spans["parent"][-1])
            if outer and outer not in self._reaching:
                spans["track"][-1], spans["parent"][-1] = fallback_track, 0
        return spans

    def accept_steps(self, fallback_track: int, *, last: bool = False) -> Block:
        """Counts and returns the `step_spans`. A pause does not split them: viewers count steps."""
        spans = self.step_spans(fallback_track, last=last)
        if len(spans):
            self._accepted[STEPS] += len(spans)
            self._latest = max(self._latest, int(spans["ts"][-1]))
            if self.table is not None:
                self.table.update(spans)
            spans.flags.writeable = False
        return spans

    def gap_event(self, gap: Interval, track: int) -> Block:
        """The pause as an event."""
        block = empty_block(1)
        block["ts"], block["dur"], block["kind"] = gap[0], gap[1] - gap[0], Kind.GAP
        block["name"], block["track"], block["step"] = strings.intern("paused"), track, NO_STEP
        block["flags"] = 0 if gap[1] < self.interval[1] else int(Flag.CLIPPED)
        return block

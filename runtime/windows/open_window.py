"""A window while it is open: its borders, steps, accounts and running table."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

import numpy as np

from stepscope.runtime.accounting.ledger import SourceLedger, losses
from stepscope.runtime.events import strings
from stepscope.runtime.events.intervals import FOREVER, Interval, Mask, clip, touching, without
from stepscope.runtime.events.nesting import Rows
from stepscope.runtime.events.record import NO_STEP, QUIET, Block, EventBatch, Flag, Kind, empty_block
from stepscope.runtime.events.survey import Survey, survey
from stepscope.runtime.windows.step_marks import StepMark, StepMarks
from stepscope.runtime.windows.window import Step
from stepscope.runtime.windows.window_tables import WindowTable

RECORDER = "recorder"
STEPS = "steps"
"""Source of the spans of steps."""
KEPT_GAPS = 4096
"""Pauses of a window by which spans are cut; of those of longer windows the oldest are let go."""

MOST_HELD = 1 << 14
"""Events that wait for something to begin in a window."""
_QUIET = [strings.category(name) for name in QUIET]


def is_quiet(events: Block) -> Mask:
    """Which are of the categories of `QUIET`."""
    category = events["category"]
    found: Mask = np.zeros(len(events), np.bool_)
    for quiet in _QUIET:
        found |= category == quiet
    return found


class OpenWindow:
    """Collects what belongs to one window. No clock, no I/O: it is told everything."""

    def __init__(self, index: int, first: StepMark, *, several: bool = False, table: WindowTable | None = None) -> None:
        """
        Args:
            index: number of the window.
            first: its first step.
            several: whether sources other than the recorder may draw on its rows.
            table: is given all that the window takes, and finished with it.
        """
        self.index = index
        self.start = first.ts
        self.end: int | None = None
        self.complete = True
        self.reason = ""
        self.notes: list[str] = []
        """What else there is to say of it."""
        self.facts: dict[str, Any] = {}
        """What its metadata say beside those of the run."""
        self.late: list[str] = []
        """Sources that had not delivered everything when it closed."""
        self._missing: Counter[tuple[str, str]] = Counter()
        self.cut_short = self.needs_last = self.ready = False
        self.waiting_since: int | None = None
        """When the end became known, in ns."""
        self.held: list[EventBatch] | None = []
        """Batches of step marks, and of spans that had begun before, until something begins in the window; `None` after.

        The last `step()` of a run may begin a window that never holds anything: no exporter is to hear of it.
        """
        self.table = table
        self.gaps: deque[tuple[int, int | None]] = deque(maxlen=KEPT_GAPS)
        self.superseded: set[int] = set()
        """Spans that were written as open when the window closed: their later records are not news."""
        self.events = 0
        """Events and gaps taken, steps apart, and what is quiet."""
        self.gap_events = 0
        self.marks = StepMarks(first)
        self._rows = Rows() if several else None
        self._latest = first.ts
        self._accepted: Counter[str] = Counter()
        self._dropped: dict[str, Counter[str]] = {}

    @property
    def interval(self) -> Interval:
        """From the start to the end, or for ever while the end is not known."""
        return self.start, FOREVER if self.end is None else self.end

    @property
    def recorded(self) -> list[Interval]:
        """The window without its pauses."""
        if not self.gaps:
            return [self.interval]
        return without(self.interval, [(start, FOREVER if end is None else end) for start, end in self.gaps])

    def add_marks(self, events: Block) -> None:
        """Takes step marks; those before the latest and beyond the window's end change nothing."""
        self.marks.add(events, self.interval[1])

    def take(self, source: str, events: Block) -> Block:
        """The events, or parts of them, that lie in this window, with their steps; counts them."""
        intervals = self.recorded
        start, end = intervals[0] if len(intervals) == 1 else (0, 0)
        found = survey(events)
        simple = start < end and start <= found.first_ns and found.end_ns < end
        # A step stays one span, whatever pauses are in it: viewers count steps.
        if not simple and source != STEPS:
            events = clip(events, intervals)
            found = survey(events)
        return self._count(source, events, found)

    def take_launched(self, source: str, events: Block, before: int) -> Block:
        """The events, whole, of a device that worked off after `before` what was launched until then; counts them. Those that
        began later are of the step that this time ends."""
        return self._count(source, events, survey(events), before)

    def _count(self, source: str, events: Block, found: Survey, before: int | None = None) -> Block:
        if not found.events:
            return events
        if found.gaps:
            for reason, count in losses(events).items():
                self.count_dropped(source, reason, count)
            self.gap_events += found.gaps
        self._accepted[source] += found.events - found.gaps
        self.events += 0 if source == STEPS else found.loud
        mine = self.marks.with_steps(events)
        if before is not None:
            mine["step"] = self.marks.steps_at(np.minimum(mine["ts"], before - 1))
        if self._rows is not None and source != STEPS:
            self._rows.add(source, mine, self.marks.nested(self.interval[1]) if source != RECORDER else None)
        self._latest = max(self._latest, found.loud_last_ns)
        if self.table is not None:
            self.table.update(mine)
        mine.flags.writeable = False
        return mine

    def finish_table(self) -> None:
        """All was taken; the table says what the steps were."""
        if self.table is not None:
            steps = self.marks.last.ts < self.steps_end or len(self.marks) > 1
            self.table.finish(*self.interval, self.steps_end if steps else None)

    def release(self, batch: EventBatch) -> list[EventBatch]:
        """What may be exported now that this batch was taken."""
        if not len(batch):
            return []
        if self.held is None:
            return [batch]
        self.held.append(batch)
        events = batch.events
        waits = ((events["kind"] == Kind.STEP) | (events["ts"] <= self.start) | is_quiet(events)).all()
        if waits and self.withheld <= MOST_HELD:
            return []
        return self.release_held()

    def release_held(self) -> list[EventBatch]:
        """What waited for something to begin in the window, which does not wait any longer."""
        held, self.held = self.held or [], None
        return held

    def take_open(self, open_spans: Block) -> Block:
        """Spans that have not ended when the window closes, cut at its end and flagged; later records are ignored."""
        spans = open_spans[touching(open_spans, self.interval)]
        if not len(spans):
            return spans
        taken = self.take(RECORDER, spans)
        self.superseded.update(int(number) for number in taken["id"])
        return taken

    def trim(self) -> None:
        """Ends the window with its last step if the run ended right after that: nothing follows."""
        if self.cut_short and len(self.marks) > 1 and self._latest <= self.marks.last.ts:
            self.end = self.marks.last.ts

    @property
    def steps_end(self) -> int:
        """When its last step ended. What follows the last `step()` of a run is in the window, and is no step."""
        return self.marks.last.ts if self.cut_short else self.interval[1]

    @property
    def empty(self) -> bool:
        """Whether it was begun by the last `step()` of a run and holds nothing."""
        return self.held is not None and self.cut_short and len(self.marks) == 1 and self._latest <= self.start

    @property
    def taken(self) -> int:
        """Events, parts of events, steps and gaps that were taken."""
        return self._accepted.total() + self.gap_events

    @property
    def withheld(self) -> int:
        """Those of `taken` that wait for something else to happen in the window."""
        return 0 if self.held is None else sum(map(len, self.held))

    def count_dropped(self, source: str, reason: str, count: int) -> None:
        """Notes `count` events that were lost."""
        if count:
            self._dropped.setdefault(source, Counter())[reason] += count

    def count_missing(self, source: str, why: str, start: int, end: int) -> None:
        """Notes a time of which a source has nothing, as far as it lies in the window."""
        first, last = self.interval
        missing = min(end, last) - max(start, first)
        if missing > 0:
            self._missing[source, why] += missing

    @property
    def lacking(self) -> bool:
        """Whether some source has not delivered all that it was to record."""
        return bool(self._missing or self.late)

    def missing_notes(self) -> list[str]:
        """A sentence for each source and reason."""
        return [
            f"incomplete: {source!r} has nothing of {ns / 1e6:,.3f} ms of the window: {why}"
            for (source, why), ns in self._missing.items()
        ]

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
        """The recorded steps."""
        return self.marks.steps(self.steps_end)

    def step_spans(self, fallback_track: int, *, last: bool = False) -> Block:
        """A span for each step that has ended since the last call; with `last`, also for the one that ends the window."""
        return self.marks.new_spans(fallback_track, self.steps_end if last else None)

    def gap_event(self, gap: Interval, track: int) -> Block:
        """The pause as an event."""
        block = empty_block(1)
        block["ts"], block["dur"], block["kind"] = gap[0], gap[1] - gap[0], Kind.GAP
        block["name"], block["track"], block["step"] = strings.intern("paused"), track, NO_STEP
        block["flags"] = 0 if gap[1] < self.interval[1] else int(Flag.CLIPPED)
        return block

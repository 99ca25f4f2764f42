"""The window router: assigns each event to a window and a step, and decides when a window closes.

A state machine over event time: messages and blocks in, batches out; no clock, no thread, no I/O. Only its subclass for the
flight recorder (`flight/late_windows.py`) writes steps into files of the session. Events may arrive late and out of order. A
window closes when the watermarks of all sources have passed its end, or when the linger time is over.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.runtime.accounting.ledger import SourceLedger
from stepscope.runtime.events.intervals import FOREVER, Interval, Mask, ends, has_duration, touching, touching_any
from stepscope.runtime.events.record import Block, EventBatch, Kind, join_blocks
from stepscope.runtime.events.survey import Survey, count_in, of_kind, parts_in, survey
from stepscope.runtime.schedule.detail import DetailFilter
from stepscope.runtime.windows.open_window import RECORDER as RECORDER
from stepscope.runtime.windows.open_window import STEPS, OpenWindow
from stepscope.runtime.windows.step_marks import StepMark, WindowEnds
from stepscope.runtime.windows.window import ARMED
from stepscope.runtime.windows.window_tables import WindowTable

INTERRUPTED = "a change of the action was interrupted by an exception, as of a signal handler"
CUT = "the run ended before the last step of the window"
FEW_WINDOWS = 4
"""Up to so many windows, each one filters the block. For more, the block is sorted first."""
NOT_IN_TIME = "not all of it had come when the window closed"
"""Why events of some time are missing."""
MAX_CLOSED = 64
"""Number of closed windows to remember, to recognise late events."""


class WindowsStatistics(msgspec.Struct, frozen=True):
    """Accounts of the windows stage, over the run. Per source: seen = accepted + outside + late + superseded + retained."""

    opened: int
    closed: int
    seen: dict[str, int]
    accepted: dict[str, int]
    outside: dict[str, int]
    """Events between windows or in pauses, which were recorded for another profiler."""
    late: dict[str, int]
    superseded: dict[str, int]
    """Records of spans that were already written as open at the end of their window."""
    dropped: dict[str, dict[str, int]]
    entered: int
    """Events in windows: entered = released + withheld. An event that crosses a border counts once in each window. Steps and
    gaps are events here, too."""
    released: int
    """Events that were passed on to the exporters."""
    withheld: int
    """Events of windows that have nothing but the begin of a step. Exporters do not get these."""
    retained: dict[str, int] = {}
    """Events that the flight recorder retains and has not saved."""
    missing: dict[str, dict[str, int]] = {}
    """Per source and reason: ns for which the source has no events, although it should record."""
    left_out: int = 0
    """Events of the recorder that were filtered out, by the detail level of their step."""


class _Closed(NamedTuple):
    interval: Interval
    superseded: set[int]


class WindowRouter:
    """The windows of one profiler."""

    def __init__(self, serial: int, linger_ns: int, fallback_track: int) -> None:
        """Args: number of the profiler in its step marks; linger time in ns; track for steps that do not nest."""
        self._serial = serial
        self._linger = linger_ns
        self._track = fallback_track
        self._open: list[OpenWindow] = []
        self._closed: deque[_Closed] = deque(maxlen=MAX_CLOSED)
        self._watermarks: dict[str, int] = {RECORDER: 0}
        self._count = self._closed_count = 0
        self._entered = self._released = self._withheld = 0
        self._paused_at: int | None = None
        self.cut_steps = 0
        """Number of steps of the run's last window, if `step()` did not end the last one of the schedule."""
        self._seen: Counter[str] = Counter()
        self._accepted: Counter[str] = Counter()
        self._outside: Counter[str] = Counter()
        self._late: Counter[str] = Counter()
        self._superseded: Counter[str] = Counter()
        self._dropped: dict[str, Counter[str]] = {}
        self._missing: dict[str, Counter[str]] = {}
        self._late_to: dict[str, int] = {}
        """By source: the end of the latest window that closed without all of its events, which is counted as missing."""
        self._progress: dict[str, int] = {}
        self.optimizer_steps = False
        """Whether an optimizer's step() ends the steps, see `StepTotals`."""
        self.opened: Callable[[OpenWindow], None] = lambda window: None
        """Called with each window that begins."""
        self._marks_until = 0
        """When the last known step mark was, of any profiler, in ns."""
        self._foreign_marks = False
        """Whether another profiler has step marks."""
        self.detail = DetailFilter()
        """Filters out events by the detail level. These count neither as seen nor as dropped."""

    # messages

    def add_source(self, source: str) -> None:
        """Windows wait for this source from now on."""
        self._watermarks.setdefault(source, 0)

    def remove_source(self, source: str) -> None:
        """Windows no longer wait for this source."""
        self._watermarks.pop(source, None)

    def open(self, first: StepMark) -> int:
        """Begins a window with this step, and returns its index. Ends a window that has no end yet."""
        self.close(WindowEnds(first.ts, False, INTERRUPTED), first.ts)
        return self._add(first)

    def _add(self, first: StepMark) -> int:
        table = WindowTable(optimizer=self.optimizer_steps)
        window = OpenWindow(self._count, first, several=len(self._watermarks) > 1, table=table)
        self.opened(window)
        self._count += 1
        if self._paused_at is not None:
            window.gaps.append((first.ts, None))
        self._open.append(window)
        return window.index

    def note_armed(self, facts: dict[str, Any] | None) -> None:
        """Adds the description of the request to the metadata of the latest window, if that has not ended."""
        if facts and self._open and self._open[-1].end is None:
            self._open[-1].facts.setdefault(ARMED, {}).update(facts)

    def close(self, end: WindowEnds, now: int) -> None:
        """Ends the latest window, if it has no end yet. Its linger time begins at `now`."""
        if not self._open or self._open[-1].end is not None:
            return
        window = self._open[-1]
        window.end_at(end.at)
        window.complete, window.reason = end.complete, end.reason
        window.cut_short, window.needs_last = end.cut_short, end.needs_last
        window.waiting_since = now

    def pause(self, at: int) -> None:
        """Begins a pause in recording. A second call has no effect."""
        if self._paused_at is not None:
            return
        self._paused_at = at
        for window in self._open:
            if window.end is None:
                window.gaps.append((at, None))

    def resume(self, at: int) -> list[EventBatch]:
        """Ends the pause. Returns it as a gap event of each open window."""
        self._paused_at = None
        batches: list[EventBatch] = []
        for window in self._open:
            if window.gaps and window.gaps[-1][1] is None:
                start = window.gaps[-1][0]
                window.gaps[-1] = (start, at)
                window.gap_events += 1
                batches.append(EventBatch(STEPS, window.index, window.gap_event((start, at), self._track), b""))
        self._released += len(batches)
        return batches

    def watermark(self, source: str, at: int) -> None:
        """The source has delivered every event that began before `at`."""
        if source in self._watermarks:
            self._watermarks[source] = max(self._watermarks[source], at)
            self._finish_steps()

    def delivered_until(self, timeout_ns: int) -> int:
        """All sources have delivered their events up to this time, or are late by more than `timeout_ns`."""
        return max(min(self._watermarks.values()), self._watermarks[RECORDER] - timeout_ns)

    def _finish_steps(self) -> None:
        """Computes the facts of steps for which all sources have delivered."""
        until = min(self._watermarks.values())
        for window in self._open:
            if window.table is not None:
                reached = min(until, window.interval[1])
                window.table.finish_until(reached)
                window.table.ns = max(reached - window.start, 0)

    def source_dropped(self, source: str, reason: str, count: int, at: int) -> None:
        """Counts events that a source or the inbox dropped around the time `at`."""
        self._count_dropped(source, reason, count)
        for window in self._open:
            if window.interval[0] <= at < window.interval[1]:
                window.count_dropped(source, reason, count)
                break

    def note_progress(self, source: str, now: int) -> None:
        """A source reports progress: the linger time of windows that wait for it begins anew."""
        if source in self._watermarks:
            self._progress[source] = now

    def extend_linger(self, since: int, duration: int) -> None:
        """Extends the linger time of windows that waited at the time `since`, because no source could deliver."""
        for window in self._open:
            if window.waiting_since is not None and window.waiting_since <= since:
                window.waiting_since += duration
        for source, at in self._progress.items():
            self._progress[source] = at + duration if at <= since else at

    def source_missing(self, source: str, why: str, interval: Interval) -> None:
        """Counts a time for which a source has no events, although it should record."""
        start, end = interval
        self._count_missing(source, why, max(start, self._late_to.get(source, 0)), end)
        for window in self._open:
            window.count_missing(source, why, start, end)

    def _count_missing(self, source: str, why: str, start: int, end: int) -> None:
        if start < end:
            self._missing.setdefault(source, Counter())[why] += end - start

    def _count_dropped(self, source: str, reason: str, count: int) -> None:
        if count:
            self._dropped.setdefault(source, Counter())[reason] += count

    # events

    def route(
        self, source: str, events: Block, args: bytes, found: Survey | None = None, *, owned: bool = False
    ) -> list[EventBatch]:
        """Divides a block among the windows, and counts events that belong to none. `found` is its survey, if there is one. A block
        that is `owned` may be changed."""
        events, found, batches = self._receive(source, events, found or survey(events))
        if not len(events):
            return batches
        for window, part in self._divide(events, found):
            whole = part is events
            accepted = window.accept(source, part, found if whole else None, in_place=whole and owned)
            batches += self._release(window, EventBatch(source, window.index, accepted, args))
        total = found.events - found.gaps
        recorded = [interval for window in self._open for interval in window.recorded]
        inside = len(recorded) == 1 and recorded[0][0] <= found.first_ns and found.end_ns < recorded[0][1]
        if inside or count_in(events, recorded) == total:
            self._accepted[source] += total
        else:
            self._count_by_outcome(source, events[events["kind"] != int(Kind.GAP)])
        return batches

    def _divide(self, events: Block, found: Survey) -> Iterable[tuple[OpenWindow, Block]]:
        """The windows that the events touch, each with its events."""
        reached = [one for one in self._open if one.interval[0] <= found.end_ns and one.interval[1] > found.first_ns]
        if len(reached) == 1:
            return [(reached[0], events)]
        if len(reached) > FEW_WINDOWS or found.gaps:
            return divide(self._open, events)
        parts = ((one, parts_in(events, one.interval)) for one in reached)
        return ((one, part) for one, part in parts if len(part))

    def route_launched(self, source: str, events: Block, args: bytes, before: int) -> list[EventBatch]:
        """Routes the events of a device to the window in which the host launched them: the one that ends at `before`, or in
        which this time lies."""
        self._seen[source] += len(events)
        for window in self._open:
            start, end = window.interval
            if start < before <= end:
                self._accepted[source] += len(events)
                accepted = window.accept_launched(source, events, before)
                return self._release(window, EventBatch(source, window.index, accepted, args))
        if any(closed.interval[0] < before <= closed.interval[1] for closed in self._closed):
            self._late[source] += len(events)
            self._count_dropped(source, "late", len(events))
        else:
            self._outside[source] += len(events)
        return []

    def _receive(self, source: str, events: Block, found: Survey) -> tuple[Block, Survey, list[EventBatch]]:
        """Counts the events. Returns them without step marks of other profilers, their survey, and the spans of steps that
        ended."""
        batches: list[EventBatch] = []
        if source == RECORDER and len(events):
            marked = found.steps and (self._foreign_marks or found.last_mark_ns > self._marks_until)
            wanted = self.detail.keep(self._without_foreign_marks(events) if marked else events)
            if wanted is not events:
                events, found = wanted, survey(wanted)
            for window in self._open if len(events) else ():
                # A window that has ended gets its last spans of steps when it closes.
                if window.end is None and window.marks.pending:
                    batches += self._release_steps(window)
        self._count_dropped(source, "overflow", found.lost)
        self._seen[source] += found.events - found.gaps
        return events, found, batches

    def add_marks(self, marks: Block) -> None:
        """Adds step marks ahead of the events between them. Known marks are ignored."""
        if not len(marks):
            return
        mine = marks["id"] == self._serial
        if not mine.all():
            self._foreign_marks = True
        self._marks_until = max(self._marks_until, int(marks["ts"].max()))
        own = in_order(marks[mine] if self._foreign_marks else marks)
        self.detail.add_marks(own)
        if len(own):
            for window, first, end in places(self._open, own["ts"]):
                if first < end:
                    window.add_marks(own[first:end])

    def _release_steps(self, window: OpenWindow, *, last: bool = False) -> list[EventBatch]:
        spans = window.accept_steps(self._track, last=last)
        self._seen[STEPS] += len(spans)
        self._accepted[STEPS] += len(spans)
        return self._release(window, EventBatch(STEPS, window.index, spans, b""))

    def _release(self, window: OpenWindow, batch: EventBatch) -> list[EventBatch]:
        batches = window.release(batch)
        self._released += sum([len(one.events) for one in batches])
        return batches

    def _without_foreign_marks(self, events: Block) -> Block:
        marks = of_kind(events, Kind.STEP)
        if not len(marks):
            return events
        self.add_marks(marks)
        count = int((marks["id"] != self._serial).sum())
        if not count:
            return events
        self._seen[RECORDER] += count
        self._outside[RECORDER] += count
        own_events: Block = events[(events["kind"] != int(Kind.STEP)) | (events["id"] == self._serial)]
        return own_events

    def _count_by_outcome(self, source: str, events: Block) -> None:
        """Counts the events of a block of which not all were accepted: as accepted, superseded, late or outside."""
        rest: Mask = ~touching_any(events, [part for window in self._open for part in window.recorded])
        self._accepted[source] += int((~rest).sum())
        late: Mask = np.zeros(len(events), np.bool_)
        known: Mask = np.zeros(len(events), np.bool_)
        first, last = int(events["ts"].min(initial=FOREVER)), int(ends(events).max(initial=0))
        for interval, superseded in self._closed:
            if interval[1] <= first or interval[0] > last:
                continue
            inside = rest & touching(events, interval)
            if not inside.any():
                continue
            known |= inside & np.isin(events["id"], list(superseded))
            late |= inside
        late &= ~known
        self._superseded[source] += int(known.sum())
        self._late[source] += int(late.sum())
        self._count_dropped(source, "late", int(late.sum()))
        self._outside[source] += int((rest & ~late & ~known).sum())

    # closing

    def closable(self, now: int) -> bool:
        """Marks the windows that are ready to close, and returns whether there is one. `finish` closes these."""
        for window in self._open:
            window.ready = window.ready or self._ready(window, now)
        return any(window.ready for window in self._open)

    def _ready(self, window: OpenWindow, now: int) -> bool:
        if window.end is None or window.waiting_since is None or self._watermarks.get(RECORDER, 0) < window.end:
            return False
        late = [source for source, at in self._watermarks.items() if at < window.end]
        since = max([window.waiting_since, *(self._progress.get(source, 0) for source in late)])
        return not late or now - since >= self._linger

    def finish(self, open_spans: Block) -> list[tuple[OpenWindow, list[EventBatch]]]:
        """Closes the windows that `closable` has marked, and returns each with its last batches. The open spans were read after
        `closable`, and before the latest blocks."""
        closed: list[tuple[OpenWindow, list[EventBatch]]] = []
        wanted = self.detail.wanted(open_spans, ended=False)
        if wanted is not None:
            open_spans = open_spans[wanted]
        first = int(open_spans["ts"].min(initial=FOREVER))
        for window in [window for window in self._open if window.ready]:
            self._count_late_sources(window)
            batches: list[EventBatch] = []
            if first < window.interval[1]:
                accepted = window.accept_open_spans(open_spans)
                batches = self._release(window, EventBatch(RECORDER, window.index, accepted, b""))
            window.trim()
            if window.cut_short and window.needs_last and not window.empty:
                window.complete, window.reason = False, CUT
            if window.cut_short:
                self.cut_steps = 0 if window.complete else len(window.steps())
            batches += self._release_steps(window, last=True)
            if not window.empty:  # exporters do not get an empty one, not even an open span in it
                withheld = window.release_withheld()
                self._released += sum(map(len, withheld))
                batches += withheld
            window.finish_table()
            self._entered += window.entered
            self._withheld += window.withheld
            self._closed.append(_Closed(window.interval, window.superseded))
            self._closed_count += 1
            closed.append((window, batches))
        self._open = [window for window in self._open if not window.ready]
        return closed

    def _count_late_sources(self, window: OpenWindow) -> None:
        end = window.interval[1]
        late = [source for source, at in self._watermarks.items() if at < end]
        for source in late:
            start = max(window.start, self._watermarks[source], self._late_to.get(source, 0))
            self._count_missing(source, NOT_IN_TIME, start, end)
            window.count_missing(source, NOT_IN_TIME, start, end)
            self._late_to[source] = end
        if late:
            waited = f"closed after {self._linger / 1e9:g} s without waiting longer for {', '.join(sorted(late))}; raise Options.linger"
            window.reason = f"{window.reason}; {waited}" if window.reason else waited

    @property
    def unfinished(self) -> int:
        """Number of windows that are not closed. Any thread may read it."""
        return len(self._open)

    @property
    def open_since(self) -> int | None:
        """When the window began that has no end yet, in ns; `None` if there is none, or in a pause."""
        if not self._open or self._open[-1].end is not None or self._paused_at is not None:
            return None
        return self._open[-1].start

    def waiting(self) -> bool:
        """Whether a window has ended, and is not closed yet."""
        return any(window.end is not None for window in self._open)

    def ledger(self) -> dict[str, SourceLedger]:
        ledgers: dict[str, SourceLedger] = {}
        for source in sorted({*self._seen, *self._dropped, *self._missing}):
            reasons: dict[str, int] = dict(self._dropped.get(source, Counter()))
            dropped = {reason: count for reason, count in reasons.items() if count}
            ledgers[source] = SourceLedger(
                produced=self._seen[source] + sum(dropped.values()) - self._late[source],
                accepted=self._accepted[source],
                dropped=dropped,
                outside=self._outside[source],
                superseded=self._superseded[source],
                missing=dict(self._missing.get(source, {})),
            )
        return ledgers

    def statistics(self) -> WindowsStatistics:
        return WindowsStatistics(
            opened=self._count,
            closed=self._closed_count,
            seen=dict(self._seen),
            left_out=self.detail.left_out,
            accepted=dict(self._accepted),
            outside=dict(self._outside),
            late=dict(self._late),
            superseded=dict(self._superseded),
            # Copied first: the loop changes them meanwhile, on another thread.
            dropped={source: dict(reasons) for source, reasons in list(self._dropped.items())},
            missing={source: dict(times) for source, times in list(self._missing.items())},
            entered=self._entered + sum(window.entered for window in list(self._open)),
            released=self._released,
            withheld=self._withheld + sum(window.withheld for window in list(self._open)),
        )


def in_order(events: Block) -> Block:
    """The events in the order of their begins. Those of one thread are mostly in order: instants and step marks always."""
    later = events["ts"][1:] < events["ts"][:-1]
    return events[np.argsort(events["ts"], kind="stable")] if later.any() else events


def places(windows: list[OpenWindow], times: NDArray[np.int64]) -> list[tuple[OpenWindow, int, int]]:
    """For each window, the range of the times in it. The times are sorted."""
    borders = np.array([window.interval for window in windows], np.int64).reshape(-1, 2)
    found: list[list[int]] = np.searchsorted(times, borders).tolist()
    return [(window, first, end) for window, (first, end) in zip(windows, found, strict=True)]


def divide(windows: list[OpenWindow], events: Block) -> Iterator[tuple[OpenWindow, Block]]:
    """Divides events among windows in one pass: a drain may bring thousands of windows.

    Only the first window that a gap touches counts the events that the gap stands for.
    """
    events = in_order(events)
    ts, last = events["ts"], ends(events)
    borders = np.array(sorted({border for window in windows for border in window.interval}))
    long = events[
        has_duration(events) & (np.searchsorted(borders, ts, "right") != np.searchsorted(borders, last, "right"))
    ]
    counted = long["kind"] != int(Kind.GAP)
    for window, first, stop in places(windows, ts):
        part = events[first:stop]
        if len(long):
            start, end = window.interval
            reaching = (long["ts"] < start) & (ends(long) > start)
            before = long[reaching]
            before["id"][(before["kind"] == int(Kind.GAP)) & counted[reaching]] = 0
            counted |= reaching | ((long["ts"] >= start) & (long["ts"] < end))
            part = join_blocks([before, part]) if len(before) else part
        if len(part):
            yield window, part

"""The window router of the flight recorder: opens windows in the past."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from stepscope.runtime.accounting.ledger import SourceLedger
from stepscope.runtime.events.intervals import FOREVER, Interval, touching_any
from stepscope.runtime.events.record import Block, EventBatch, Kind, empty_block
from stepscope.runtime.events.survey import Survey, survey
from stepscope.runtime.flight.retention import RetainedBlock, Retention
from stepscope.runtime.flight.settings import FlightRecorder
from stepscope.runtime.flight.step_log import StepLog
from stepscope.runtime.flight.triggers.trigger import StepTimes
from stepscope.runtime.windows.open_window import STEPS, OpenWindow
from stepscope.runtime.windows.router import RECORDER, WindowRouter, WindowsStatistics
from stepscope.runtime.windows.step_marks import StepMark, WindowEnds

MAX_PAUSES = MAX_LOSSES = 1 << 16
"""Pauses and losses that are remembered: as many as steps can be retained."""


class _Loss(msgspec.Struct):
    """Events that a source lost around a time."""

    source: str
    reason: str
    count: int
    at: int


class FlightWindows(WindowRouter):
    """Retains events instead of routing them. `save` opens a window in the past, which gets retained and new events, and
    closes like any other window.

    An event counts as retained until it is discarded; then it counts as accepted, outside, late or superseded. The class has
    no clock and no thread, and does I/O only in `Retention`.
    """

    def __init__(
        self, serial: int, linger_ns: int, fallback_track: int, settings: FlightRecorder, directory: Path | None
    ) -> None:
        """Args: as for `WindowRouter`; the settings; the session's directory, `None` to retain everything in memory."""
        super().__init__(serial, linger_ns, fallback_track)
        self.retention = Retention(directory, serial, settings.max_bytes, self._account_discarded)
        self.steps = StepLog(settings.steps)
        self._settings = settings
        self._ends: dict[int, int] = {}
        """For each window whose end is not reached, the number of the first step after it."""
        self._backlog: dict[int, deque[RetainedBlock]] = {}
        self._urgent: list[EventBatch] = []
        self._pauses: deque[tuple[int, int | None]] = deque(maxlen=MAX_PAUSES)
        self._losses: deque[_Loss] = deque(maxlen=MAX_LOSSES)
        self._absences: deque[tuple[str, str, Interval]] = deque(maxlen=MAX_LOSSES)
        self._run_end: WindowEnds | None = None
        self._saved_until = 0
        self._saved_last = -1
        self._watermark = 0

    # called by the pipeline

    def open(self, first: StepMark) -> int:
        """Recording begins or resumes. This opens no window."""
        self._run_end = None
        self._end_pause(first.ts)
        self.steps.add(_mark_block(first, self._serial))
        return -1

    def close(self, end: WindowEnds, now: int) -> None:
        """Recording ends. Windows that wait for further steps end with it.

        Marks of the last steps may still arrive, so these windows end when the watermark has reached the end.
        """
        if self._run_end is not None:
            return
        self._run_end = end
        if self._watermark >= end.at:
            self._end_all_with_run(now)
        if not self.paused:
            self._pauses.append((end.at, None))

    def pause(self, at: int) -> None:
        """Recording pauses. A second call has no effect."""
        if self._paused_at is None:
            self._pauses.append((at, None))
        super().pause(at)

    def resume(self, at: int) -> list[EventBatch]:
        """Recording goes on."""
        self._end_pause(at)
        return super().resume(at)

    def watermark(self, source: str, at: int) -> None:
        """A source has delivered every event that began before `at`."""
        super().watermark(source, at)
        self._watermark = self._watermarks[RECORDER]
        if self._run_end is not None and self._watermark >= self._run_end.at:
            self._end_all_with_run(self._watermark)

    def source_dropped(self, source: str, reason: str, count: int, at: int) -> None:
        """A source or the inbox lost `count` events around `at`."""
        super().source_dropped(source, reason, count, at)
        last = self._losses[-1] if self._losses else None
        if last is not None and (last.source, last.reason) == (source, reason) and self._same_step(last.at, at):
            last.count += count
        else:
            self._losses.append(_Loss(source, reason, count, at))

    def source_missing(self, source: str, why: str, interval: Interval) -> None:
        """A source recorded nothing in a time in which it should have."""
        super().source_missing(source, why, interval)
        self._absences.append((source, why, interval))

    def add_marks(self, marks: Block) -> None:
        """Adds step marks, before the events between them, and ends windows whose last step is over."""
        self.steps.add(marks[marks["id"] == self._serial])
        for window in self._open:
            wanted = self._ends.get(window.index)
            if window.end is None and wanted is not None and wanted < self.steps.end:
                self._end(window, self.steps.mark(wanted).ts, self._watermark)
        super().add_marks(marks)

    def route(
        self, source: str, events: Block, args: bytes, found: Survey | None = None, *, owned: bool = False
    ) -> list[EventBatch]:
        """Retains a block, and returns batches for the open windows that its events belong to."""
        events, _, batches = self._receive(source, events, found or survey(events))
        if len(events):
            for block, piece, heap in self.retention.add(source, events, args):
                for window in self._open:
                    delivered = self._deliver_block(window, block, piece, heap)
                    self._released += sum(map(len, delivered))
                    batches += delivered
        return batches

    # saving

    def ended_steps(self, until: int) -> StepTimes:
        """Returns steps that ended by `until`, each once, except steps with a pause in them."""
        steps = self.steps.ended(until)
        for start, end in self._pauses if len(steps) else ():
            whole = (steps.ends <= start) | (steps.starts >= (FOREVER if end is None else end))
            if not whole.all():
                steps = StepTimes(steps.numbers[whole], steps.starts[whole], steps.ends[whole])
        return steps

    @property
    def paused(self) -> bool:
        """Whether recording is paused, or has not begun."""
        return not len(self.steps) or bool(self._pauses and self._pauses[-1][1] is None)

    @property
    def steps_retained(self) -> int:
        """Steps that could be saved now, including the current one."""
        return min(len(self.steps), self._settings.steps + 1)

    def began(self, at: int) -> int:
        """Returns when a step that began at `at`, in ns, resumed after its last pause; `at` without a pause."""
        last = self._pauses[-1][1] if self._pauses else None
        return at if last is None else max(at, last)

    def clamp(self, at: int) -> int:
        """Limits a time, in ns, to the run's end."""
        return at if self._run_end is None else min(at, max(self._run_end.at - 1, 0))

    def window_at(self, at: int) -> OpenWindow | None:
        return next((window for window in self._open if window.start <= at < window.interval[1]), None)

    def saved_at(self, at: int) -> bool:
        """Whether a window, open or closed, contains this time."""
        return at < self._saved_until

    def save(self, at: int, at_once: bool, now: int) -> OpenWindow:
        """Opens a window with the last steps up to the one that contains `at`, and queues their retained blocks for it.

        Args:
            at: time in ns. All events before it have arrived, and no other window contains it.
            at_once: end the window at `at` instead of the end of the step and of those after it.
            now: begin of the time that the window waits for late sources.
        """
        last = self.steps.find(at)
        start, notes = self._begin(last, at)
        mark = self.steps.mark(self.steps.find(start))
        self._add(StepMark(start, mark.number, mark.track, mark.parent))
        window = self._open[-1]
        window.notes += notes
        ends_with = last + 1 + self._settings.after
        if at_once:
            self._end(window, max(at, start + 1), now)
        elif ends_with < self.steps.end:
            self._end(window, self.steps.mark(ends_with).ts, now)
        elif self._run_end is not None and self._watermark >= self._run_end.at:
            self._end_with_run(window, self._run_end, now)
        else:
            self._ends[window.index] = ends_with
        self._saved_last = window.index
        self._add_history(window)
        stop = window.interval[1]
        blocks = [block for block in self.retention.blocks() if block.last >= start and block.first < stop]
        for block in blocks:
            block.wanted += 1
        self._backlog[window.index] = deque(blocks)
        return window

    def end_at_once(self, window: OpenWindow, at: int, now: int) -> None:
        """Ends a window that still waits for further steps."""
        if window.end is None:
            self._end(window, max(at, window.start + 1), now, "the steps to follow were not waited for")

    def deliver(self) -> list[EventBatch] | None:
        """Returns the batches of one queued block; `None` if no block is queued."""
        if self._urgent:
            urgent, self._urgent = self._urgent, []
            self._released += sum(map(len, urgent))
            return urgent
        for window in self._open:
            backlog = self._backlog.get(window.index)
            if backlog:
                batches = self._deliver_retained(window, backlog.popleft())
                self._released += sum(map(len, batches))
                return batches
        return None

    def discard(self, until: int) -> None:
        """Discards everything older than the last steps at this time, in ns."""
        horizon = self.steps.trim(min(until, self._watermark))
        self.retention.discard(horizon)
        while self._pauses and (end := self._pauses[0][1]) is not None and end < horizon:
            self._pauses.popleft()
        while self._losses and self._losses[0].at < horizon:
            self._losses.popleft()
        while self._absences and self._absences[0][2][1] < horizon:
            self._absences.popleft()

    def end_retention(self) -> Iterator[list[EventBatch]]:
        """Yields the batches of each queued block, then discards everything; the files stay until `retention.remove_files`."""
        while (more := self.deliver()) is not None:
            yield more
        self.retention.clear()

    def finish(self, open_spans: Block) -> list[tuple[OpenWindow, list[EventBatch]]]:
        """Closes the windows that `closable` found."""
        closed = super().finish(open_spans)
        for window, _ in closed:
            self._ends.pop(window.index, None)
            self._backlog.pop(window.index, None)
        return closed

    def retained(self) -> dict[str, int]:
        """Returns the number of retained events that are in no window, by source."""
        parts = (self._accepted, self._outside, self._late, self._superseded)
        return {source: count - sum(part[source] for part in parts) for source, count in list(self._seen.items())}

    def ledger(self) -> dict[str, SourceLedger]:
        """Returns the accounts of each source over the run. Retained events count when they are discarded."""
        retained = self.retained()
        return {
            source: msgspec.structs.replace(accounts, produced=accounts.produced - retained.get(source, 0))
            for source, accounts in super().ledger().items()
        }

    def statistics(self) -> WindowsStatistics:
        accounts = super().statistics()
        withheld = accounts.withheld + sum(map(len, self._urgent))
        return msgspec.structs.replace(accounts, retained=self.retained(), withheld=withheld)

    # inside

    def _ready(self, window: OpenWindow, now: int) -> bool:
        return not self._backlog.get(window.index) and not self._urgent and super()._ready(window, now)

    def _finish_steps(self) -> None:
        """A window in the past retains all its state until it is closed, as blocks of any time may follow."""

    def _same_step(self, one: int, other: int) -> bool:
        return not len(self.steps) or self.steps.find(one) == self.steps.find(other)

    def _end_pause(self, at: int) -> None:
        if self._pauses and self._pauses[-1][1] is None:
            self._pauses[-1] = (self._pauses[-1][0], at)

    def _end(self, window: OpenWindow, at: int, now: int, why_short: str = "") -> None:
        window.end_at(at)
        window.waiting_since = now
        window.marks.cut(at)
        window.complete = not why_short
        window.reason = why_short
        self._saved_until = max(self._saved_until, at)
        self._ends.pop(window.index, None)

    def _begin(self, last: int, at: int) -> tuple[int, list[str]]:
        """Returns the begin of a window with this last step, and notes if it begins later than requested."""
        notes: list[str] = []
        start = self.steps.mark(max(last - self._settings.steps + 1, self.steps.first)).ts
        early = min(self.retention.early, self._watermark)
        if early >= start:
            following = self.steps.find(early) + 1
            start = self.steps.mark(following).ts if following <= last else min(early + 1, at)
            notes.append(
                f"shorter: what was recorded before step {self.steps.mark(self.steps.find(start)).number} did not fit "
                f"FlightRecorder.max_bytes ({self._settings.max_bytes:,} bytes)"
            )
        if self._saved_until > start:
            start = self._saved_until
            notes.append(f"shorter: what was recorded before is in window {self._saved_last}")
        return start, notes

    def _end_all_with_run(self, now: int) -> None:
        for window in self._open:
            if window.end is None and self._run_end is not None:
                self._end_with_run(window, self._run_end, now)

    def _end_with_run(self, window: OpenWindow, end: WindowEnds, now: int) -> None:
        self._end(window, max(end.at, window.start + 1), now, "the run ended before the steps that were to be saved")
        window.cut_short = end.cut_short

    def _add_history(self, window: OpenWindow) -> None:
        """Adds the steps, pauses and losses of a new window's time to it."""
        begin, stop = window.interval
        super().add_marks(self.steps.since(begin))
        window.gaps.clear()
        for start, end in self._pauses:
            if start >= stop or (end is not None and end <= begin):
                continue
            window.gaps.append((max(start, begin), end))
            if end is not None:
                gap = window.gap_event((max(start, begin), end), self._track)
                window.gap_events += 1
                self._urgent.append(EventBatch(STEPS, window.index, gap, b""))
        for loss in self._losses:
            if begin <= loss.at < stop:
                window.count_dropped(loss.source, loss.reason, loss.count)
        for source, why, (start, end) in self._absences:
            window.count_missing(source, why, start, end)

    def _deliver_block(self, window: OpenWindow, block: RetainedBlock, events: Block, args: bytes) -> list[EventBatch]:
        """Returns the batches of a block's events that belong to a window. Each event counts once as accepted."""
        inside = touching_any(events, window.recorded)
        if not inside.any():
            return []
        gaps = inside & (events["kind"] == int(Kind.GAP))
        if gaps.any():
            if block.counted is not None:
                events = events.copy()
                events["id"][gaps & block.counted] = 0
            block.counted = gaps if block.counted is None else block.counted | gaps
        inside &= events["kind"] != int(Kind.GAP)
        new = inside if block.in_window is None else inside & ~block.in_window
        block.in_window = inside if block.in_window is None else block.in_window | inside
        self._accepted[block.source] += int(new.sum())
        return window.release(EventBatch(block.source, window.index, window.accept(block.source, events), args))

    def _deliver_retained(self, window: OpenWindow, block: RetainedBlock) -> list[EventBatch]:
        block.wanted -= 1
        read = self.retention.read(block)
        if read is None:
            window.count_dropped(block.source, "unreadable", block.count)
            return []
        return self._deliver_block(window, block, *read)

    def _account_discarded(self, block: RetainedBlock) -> None:
        """Before a block is discarded: queues it for windows that need it, and accounts for its other events."""
        for window in self._open if block.wanted else ():
            backlog = self._backlog.get(window.index)
            if backlog and block in backlog:
                backlog.remove(block)
                self._urgent += self._deliver_retained(window, block)
        near = any(block.first < end and block.last >= start for (start, end), _ in self._closed)
        if block.in_window is None and not near:
            self._outside[block.source] += block.count
            return
        read = self.retention.read(block)
        in_window = np.zeros(0, np.bool_) if block.in_window is None else block.in_window
        if read is None:
            self._outside[block.source] += block.count - int(in_window.sum())
            return
        rest = read[0]["kind"] != int(Kind.GAP)
        self._count_by_outcome(block.source, read[0][rest & ~in_window] if len(in_window) else read[0][rest])


def _mark_block(mark: StepMark, serial: int) -> Block:
    block = empty_block(1)
    block["ts"], block["step"], block["track"], block["parent"] = mark.ts, mark.number, mark.track, mark.parent
    block["id"], block["kind"] = serial, Kind.STEP
    return block

"""Windows that are opened afterwards: the flight recorder's half of the windows stage."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import msgspec
import numpy as np

from stepscope.runtime.accounting.ledger import SourceLedger
from stepscope.runtime.events.intervals import FOREVER, Interval, touching_any
from stepscope.runtime.events.record import Block, EventBatch, Kind, empty_block
from stepscope.runtime.flight.retention import KeptBlock, Retention
from stepscope.runtime.flight.settings import FlightRecorder
from stepscope.runtime.flight.step_log import StepLog
from stepscope.runtime.flight.triggers.trigger import StepTimes
from stepscope.runtime.windows.borders import WindowEnds
from stepscope.runtime.windows.open_window import STEPS, OpenWindow
from stepscope.runtime.windows.router import RECORDER, WindowRouter, WindowsStatistics
from stepscope.runtime.windows.step_marks import StepMark

KEPT_PAUSES = KEPT_LOSSES = 1 << 16
"""Of the steps that are kept: as many as there may be steps."""


class _Loss(msgspec.Struct):
    """Events that a source lost around a time."""

    source: str
    reason: str
    count: int
    at: int


class FlightWindows(WindowRouter):
    """Keeps what arrives instead of sorting it; `save` opens a window in the past, which is then fed and closed as any.

    An event is taken to be in a window, outside, late or superseded when it is let go; until then it is kept.
    No clock, no thread; I/O only inside `Retention`.
    """

    def __init__(
        self, serial: int, linger_ns: int, fallback_track: int, settings: FlightRecorder, directory: Path | None
    ) -> None:
        """Args: as for `WindowRouter`; the settings; the session's directory, `None` to keep everything on the heap."""
        super().__init__(serial, linger_ns, fallback_track)
        self.retention = Retention(directory, serial, settings.max_bytes, self._leaving)
        self.steps = StepLog(settings.steps)
        self._settings = settings
        self._ends: dict[int, int] = {}
        """By window, the number of the step before whose begin it ends; of windows whose end is to come."""
        self._backlog: dict[int, deque[KeptBlock]] = {}
        self._urgent: list[EventBatch] = []
        self._pauses: deque[tuple[int, int | None]] = deque(maxlen=KEPT_PAUSES)
        self._losses: deque[_Loss] = deque(maxlen=KEPT_LOSSES)
        self._absences: deque[tuple[str, str, Interval]] = deque(maxlen=KEPT_LOSSES)
        self._run_end: WindowEnds | None = None
        self._saved_until = 0
        self._saved_last = -1
        self._watermark = 0

    # what the pipeline tells

    def open(self, first: StepMark) -> int:
        """Recording begins, or begins again; no window is opened."""
        self._run_end = None
        self._end_pause(first.ts)
        self.steps.add(_mark_block(first, self._serial))
        return -1

    def close(self, end: WindowEnds, now: int) -> None:
        """Recording ends, if it has not, and with it the windows that wait for steps which never came.

        The marks of the last steps may be on their way still: which ones came is known when all until the end have.
        """
        if self._run_end is not None:
            return
        self._run_end = end
        if self._watermark >= end.at:
            self._end_all_with_run(now)
        if not self.paused:
            self._pauses.append((end.at, None))

    def pause(self, at: int) -> None:
        """Nothing is recorded from here on; told twice, it counts once."""
        if self._paused_at is None:
            self._pauses.append((at, None))
        super().pause(at)

    def resume(self, at: int) -> list[EventBatch]:
        """Recording goes on."""
        self._end_pause(at)
        return super().resume(at)

    def watermark(self, source: str, at: int) -> None:
        """Every event of `source` that began before `at` was delivered."""
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
        """A source has nothing of a time in which it was to record."""
        super().source_missing(source, why, interval)
        self._absences.append((source, why, interval))

    def take_marks(self, marks: Block) -> None:
        """Takes step marks ahead of the events between them; a window that ends with one of them ends now."""
        self.steps.add(marks[marks["id"] == self._serial])
        for window in self._open:
            wanted = self._ends.get(window.index)
            if window.end is None and wanted is not None and wanted < self.steps.end:
                self._end(window, self.steps.mark(wanted).ts, self._watermark)
        super().take_marks(marks)

    def route(self, source: str, events: Block, args: bytes) -> list[EventBatch]:
        """Keeps a block, and gives windows that are open what belongs to them."""
        events, batches = self._arrived(source, events)
        if len(events):
            for kept, piece, heap in self.retention.add(source, events, args):
                for window in self._open:
                    given = self._give(window, kept, piece, heap)
                    self._released += sum(map(len, given))
                    batches += given
        return batches

    # saving

    def ended_steps(self, until: int) -> StepTimes:
        """Steps that ended by `until`, each once, without those that recording paused in."""
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
    def open_count(self) -> int:
        """Windows that are not closed yet."""
        return len(self._open)

    @property
    def steps_kept(self) -> int:
        """Steps that could be saved now, the one under way included."""
        return min(len(self.steps), self._settings.steps + 1)

    def began(self, at: int) -> int:
        """When a step that began at `at`, in ns, went on after its last pause."""
        last = self._pauses[-1][1] if self._pauses else None
        return at if last is None else max(at, last)

    def clamp(self, at: int) -> int:
        """A time, in ns, that is not after the run's end."""
        return at if self._run_end is None else min(at, max(self._run_end.at - 1, 0))

    def window_at(self, at: int) -> OpenWindow | None:
        """The window that is open and holds this time."""
        return next((window for window in self._open if window.start <= at < window.interval[1]), None)

    def saved_at(self, at: int) -> bool:
        """Whether a window holds, or has held, this time."""
        return at < self._saved_until

    def save(self, at: int, at_once: bool, now: int) -> OpenWindow:
        """Opens a window with the last steps up to the one that `at` belongs to, and gives it what is kept of them.

        Args:
            at: time in ns; known are all events before it, and it is in no other window.
            at_once: end at `at` instead of the end of the step and of those after it.
            now: from when on the window waits for late sources.
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
        self._tell(window)
        stop = window.interval[1]
        blocks = [kept for kept in self.retention.blocks() if kept.last >= start and kept.first < stop]
        for kept in blocks:
            kept.wanted += 1
        self._backlog[window.index] = deque(blocks)
        return window

    def end_at_once(self, window: OpenWindow, at: int, now: int) -> None:
        """Ends a window that still waits for steps to follow."""
        if window.end is None:
            self._end(window, max(at, window.start + 1), now, "the steps to follow were not waited for")

    def deliver(self) -> list[EventBatch] | None:
        """What one more of the kept blocks gives to the windows that wait for it; `None` when nothing is left."""
        if self._urgent:
            urgent, self._urgent = self._urgent, []
            self._released += sum(map(len, urgent))
            return urgent
        for window in self._open:
            backlog = self._backlog.get(window.index)
            if backlog:
                batches = self._give_kept(window, backlog.popleft())
                self._released += sum(map(len, batches))
                return batches
        return None

    def let_go(self, until: int) -> None:
        """Lets go of what is older than the last steps were at this time, in ns."""
        horizon = self.steps.trim(min(until, self._watermark))
        self.retention.let_go(horizon)
        while self._pauses and (end := self._pauses[0][1]) is not None and end < horizon:
            self._pauses.popleft()
        while self._losses and self._losses[0].at < horizon:
            self._losses.popleft()
        while self._absences and self._absences[0][2][1] < horizon:
            self._absences.popleft()

    def end_keeping(self) -> list[EventBatch]:
        """Lets go of everything; what windows still waited for is given to them first."""
        batches: list[EventBatch] = []
        while (more := self.deliver()) is not None:
            batches += more
        self.retention.clear()
        return batches

    def finish(self, open_spans: Block) -> list[tuple[OpenWindow, list[EventBatch]]]:
        """Closes the windows that `closable` found."""
        closed = super().finish(open_spans)
        for window, _ in closed:
            self._ends.pop(window.index, None)
            self._backlog.pop(window.index, None)
        return closed

    def kept(self) -> dict[str, int]:
        """Events of each source that are kept and in no window."""
        parts = (self._accepted, self._outside, self._late, self._superseded)
        return {source: count - sum(part[source] for part in parts) for source, count in list(self._seen.items())}

    def ledger(self) -> dict[str, SourceLedger]:
        """Accounts of each source over the run; what is kept counts when it is let go."""
        kept = self.kept()
        return {
            source: msgspec.structs.replace(known, produced=known.produced - kept.get(source, 0))
            for source, known in super().ledger().items()
        }

    def statistics(self) -> WindowsStatistics:
        """Accounts so far."""
        known = super().statistics()
        withheld = known.withheld + sum(map(len, self._urgent))
        return msgspec.structs.replace(known, kept=self.kept(), withheld=withheld)

    # inside

    def _ready(self, window: OpenWindow, now: int) -> bool:
        return not self._backlog.get(window.index) and not self._urgent and super()._ready(window, now)

    def _settle(self) -> None:
        """Of a window in the past all is kept until it is closed: blocks of any of its times may follow."""

    def _same_step(self, one: int, other: int) -> bool:
        return not len(self.steps) or self.steps.find(one) == self.steps.find(other)

    def _end_pause(self, at: int) -> None:
        if self._pauses and self._pauses[-1][1] is None:
            self._pauses[-1] = (self._pauses[-1][0], at)

    def _end(self, window: OpenWindow, at: int, now: int, why_short: str = "") -> None:
        window.end, window.waiting_since = at, now
        window.marks.cut(at)
        window.complete = not why_short
        window.reason = why_short
        self._saved_until = max(self._saved_until, at)
        self._ends.pop(window.index, None)

    def _begin(self, last: int, at: int) -> tuple[int, list[str]]:
        """When the window begins whose last step is number `last`, and why later than it should."""
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

    def _tell(self, window: OpenWindow) -> None:
        """Tells a new window what happened in its time: steps, pauses, losses."""
        begin, stop = window.interval
        super().take_marks(self.steps.since(begin))
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

    def _give(self, window: OpenWindow, kept: KeptBlock, events: Block, args: bytes) -> list[EventBatch]:
        """The part of a block that belongs to a window; its events count as accepted, each once."""
        inside = touching_any(events, window.recorded)
        if not inside.any():
            return []
        gaps = inside & (events["kind"] == Kind.GAP)
        if gaps.any():
            if kept.counted is not None:
                events = events.copy()
                events["id"][gaps & kept.counted] = 0
            kept.counted = gaps if kept.counted is None else kept.counted | gaps
        inside &= events["kind"] != Kind.GAP
        new = inside if kept.taken is None else inside & ~kept.taken
        kept.taken = inside if kept.taken is None else kept.taken | inside
        self._accepted[kept.source] += int(new.sum())
        return window.release(EventBatch(kept.source, window.index, window.take(kept.source, events), args))

    def _give_kept(self, window: OpenWindow, kept: KeptBlock) -> list[EventBatch]:
        kept.wanted -= 1
        read = self.retention.read(kept)
        if read is None:
            window.count_dropped(kept.source, "unreadable", kept.count)
            return []
        return self._give(window, kept, *read)

    def _leaving(self, kept: KeptBlock) -> None:
        """A block is let go: windows that still wait for it get it now, and the rest of it is accounted for."""
        for window in self._open if kept.wanted else ():
            backlog = self._backlog.get(window.index)
            if backlog and kept in backlog:
                backlog.remove(kept)
                self._urgent += self._give_kept(window, kept)
        near = any(kept.first < end and kept.last >= start for (start, end), _ in self._closed)
        if kept.taken is None and not near:
            self._outside[kept.source] += kept.count
            return
        read = self.retention.read(kept)
        taken = np.zeros(0, np.bool_) if kept.taken is None else kept.taken
        if read is None:
            self._outside[kept.source] += kept.count - int(taken.sum())
            return
        left = read[0]["kind"] != Kind.GAP
        self._account(kept.source, read[0][left & ~taken] if len(taken) else read[0][left])


def _mark_block(mark: StepMark, serial: int) -> Block:
    block = empty_block(1)
    block["ts"], block["step"], block["track"], block["parent"] = mark.ts, mark.number, mark.track, mark.parent
    block["id"], block["kind"] = serial, Kind.STEP
    return block

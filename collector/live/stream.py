"""The live state of one stream, from its frames and summaries, in bounded memory."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING, Protocol

import msgspec

from stepscope.collector.clocks.server_clock import LatestClock
from stepscope.collector.live.step_times import NEVER, StepTimes, is_after
from stepscope.collector.runs.job import job_of
from stepscope.collector.runs.windows import MOST_ACCOUNT, StreamWindows, losses
from stepscope.exporters.stream.protocol import MAX_HEADER, MAX_SUMMARY_STEPS, StepSummary
from stepscope.exporters.stream.step_summary import STEP_BYTES, Shares, StepTime, count_steps, shares_of, steps_in
from stepscope.runtime.accounting.ledger import MAX_COUNT, Ledger
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.records import CapRecord, ClockSync, EndRecord, RunRecord, decode_record
from stepscope.runtime.windows.step_facts import Facts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepscope.runtime.requests.command import Answer, Command


Frame = tuple[int, int, fmt.Bytes]
"""Type, flags, payload."""

STEPS = "steps"
"""Name of the source whose events are step spans."""
SILENT_AFTER = 15.0
"""Seconds without a frame after which a stream that is connected counts as silent; clocks are compared more often."""
DIED_AFTER = 30.0
"""Seconds after which a stream that lost its connection counts as died."""
_MOST_STEP_BYTES = 8 << 20
"""Largest size of the unpacked steps of one message. Exporters send less; larger ones are not shown."""
_FEW, _FEW_BYTES = 64, 1 << 18
"""Few frames, and their bytes: messages with no more are decoded as soon as they are added, as nearly all are."""
_MOST_BYTES: dict[int, int] = {
    fmt.FrameType.WINDOW_OPENED: 1 << 12,
    fmt.FrameType.WINDOW_CLOSED: 8 << 20,  # 24 for each step; what else is read of it is bounded
    fmt.FrameType.LEDGER: MOST_ACCOUNT,
    fmt.FrameType.CAP: 1 << 12,
    fmt.FrameType.CLOCK_SYNC: 1 << 12,
    fmt.FrameType.STEP_FACTS: MAX_HEADER,
}
"""Largest size of a record, by its type. Exporters write smaller ones; a larger one would delay all streams, and is not shown."""
MAX_SUMMARIES = 128
"""Summaries that are kept to judge the newest steps."""
MAX_STEPS = 2 * MAX_SUMMARY_STEPS
"""Steps in these summaries; the newest summary stays in any case."""
STEPS_PER_SECOND = 4 * MAX_SUMMARY_STEPS
"""Steps that summaries of one stream may bring; an exporter sends a summary about once a second."""
STEPS_AT_ONCE = 1 << 17
"""Steps that summaries may bring at once: so many an exporter has after a long time without a connection."""
_SUMMARY_STEPS = 32
"""A summary costs as much as so many steps."""
_HOUR = 3600 * 10**9
_RATE_SECONDS = 5
"""Whole seconds that are averaged."""
_decode_facts = msgspec.msgpack.Decoder(StepSummary).decode


class State(Enum):
    """State of a stream."""

    CONNECTED = "connected"
    SILENT = "silent"
    """Nothing has come for a while, or the connection was lost a moment ago."""
    ENDED = "ended"
    """The run was closed in order."""
    DIED = "died"
    """The process has no connection, and did not report an end."""


class Amounts(msgspec.Struct, frozen=True):
    """Sums over a stream's life, or over the lives of several."""

    events: int = 0
    bytes: int = 0
    """Size of their files."""
    dropped: int = 0
    """Events lost, as far as ledgers have arrived."""
    discarded: int = 0
    """Events evicted to keep the files within the limit of the disk."""

    def __add__(self, other: Amounts) -> Amounts:
        """The sum of both."""
        return self._each(other, int.__add__)

    def highest(self, other: Amounts) -> Amounts:
        """The larger of both numbers in each field."""
        return self._each(other, max)

    def _each(self, other: Amounts, of: Callable[[int, int], int]) -> Amounts:
        return Amounts(*map(of, msgspec.structs.astuple(self), msgspec.structs.astuple(other)))


class JudgedSummary(msgspec.Struct):
    """Facts of steps, for verdicts."""

    summary: StepSummary
    facts: Facts | None = None
    """The facts of its steps, as long as they are judged."""


class Process(Protocol):
    """The way to a process that sends a stream: a connection, or NATS."""

    @property
    def control(self) -> int:
        """Version of the commands that it obeys; 0: none."""
        ...

    async def order(self, command: Command, seconds: float) -> Answer:
        """Sends a command, and returns the answer. Raises `TimeoutError` if it does not answer in time, and
        `ConnectionError` if there is no way to it any more."""
        ...


class Rate:
    """Counts of the last seconds; `now` is a monotonic time in seconds, which never goes back."""

    def __init__(self) -> None:
        self._counts: deque[tuple[int, int]] = deque(maxlen=_RATE_SECONDS + 1)
        """Seconds in which something arrived, and how much; the latest last."""
        self._first = 0

    def add(self, count: int, now: float) -> None:
        """Counts what arrived."""
        second = int(now)
        if not self._counts:
            self._first = second
        elif self._counts[-1][0] == second:
            count += self._counts.pop()[1]
        self._counts.append((second, count))

    def per_second(self, now: float) -> float:
        """The average of the last whole seconds, or of those since the first count."""
        second = int(now)
        seconds = min(second - self._first, _RATE_SECONDS)
        if not self._counts or seconds <= 0:
            return float(self._counts[-1][1]) if self._counts else 0.0
        return sum(count for at, count in self._counts if second - _RATE_SECONDS <= at < second) / seconds


class Allowance:
    """Limits how much a sender may bring; `now` is a monotonic time in seconds."""

    def __init__(self, per_second: float, at_once: float) -> None:
        self._per_second, self._at_once = per_second, at_once
        self._due = -math.inf

    def use(self, amount: float, now: float) -> float:
        """Uses up some of it; returns the seconds until that was allowed, 0 if it is now."""
        self._due = max(self._due, now - self._at_once / self._per_second) + amount / self._per_second
        return max(self._due - now, 0.0)


class _FrameBatch:
    """Frames that arrived together; `frames` iterates over those that are not processed yet."""

    def __init__(self, frames: Sequence[Frame], *, live: bool) -> None:
        self.frames: Iterator[Frame] = iter(frames)
        self.live = live
        """Whether they were just received, and not read from the file."""
        self.step_bytes = _MOST_STEP_BYTES


class Stream:
    """Decodes frames, live or from the file, and has what the live page shows. Everything happens on one thread.

    Many frames are not decoded at once: it is `behind` with them until `decode` was called as often as that takes, which is the
    work of `DecodeQueue`.
    """

    def __init__(self, id: str, run: RunRecord, born_ns: int | None = None) -> None:
        """
        Args:
            born_ns: Unix time at which the collector saw it first; now by default.
        """
        self.id, self.run = id, run
        self.job = job_of(run)
        """Name of its job, as `stepscope merge --job` takes it."""
        self.born_ns = time.time_ns() if born_ns is None else born_ns
        self.connection: Process | None = None
        self.process: Process | None = None
        """The way to the process, if that is not the connection."""
        self.remote = False
        """Whether only its summaries are known here, as another collector takes the stream."""
        self._summarized_at = -math.inf
        """Time of the last summary that all collectors get, by the monotonic clock."""
        self.ended_elsewhere = False
        """Whether its end was announced, or another collector has it; its last frames may still be on their way."""
        self.end_looked_up = -math.inf
        """Time of the last question whether another collector has its end, by the monotonic clock."""
        self.next = 0
        """Number of the first frame that was not added here."""
        self.arrived = 0
        """Number of the frame after those that arrived last."""
        self.events = self.missing = 0
        self.undecodable = 0
        """Frames that cannot be decoded, or are larger than any that an exporter makes: they are not shown."""
        self.left_out_steps = 0
        """Steps that are in no summary, as there were too many."""
        self.left_out_records = 0
        """Records of its journal, other than events, that were left out. Known at its end."""
        self.bytes = fmt.FILE_HEADER.size
        """Size of its file."""
        self.windows = StreamWindows()
        self.steps = StepTimes()
        self.summaries: deque[JudgedSummary] = deque(maxlen=MAX_SUMMARIES)
        """The newest summaries, the latest last."""
        self.sends_summaries = False
        """Whether summaries bring the steps. While they do, steps among the frames are not read."""
        self.heard_at = -math.inf
        """Time of the last summary, or of the begin of a connection that may bring some, by the monotonic clock."""
        self.steps_at = 0.0
        """Time at which the last steps came, by the monotonic clock."""
        self.shares = Shares()
        """Shares of the newest summary with steps."""
        self.ended = False
        """Whether it was closed in order."""
        self.superseded = False
        """Whether a later start of its rank is known."""
        self.restoring = False
        """Whether its file is still being read: frames that arrive meanwhile are found there."""
        self.seen = time.monotonic()
        """Time at which the last frames came."""
        self.event_rate, self.byte_rate = Rate(), Rate()
        self._dropped: Counter[str] | None = None
        self._capped = 0
        self._amounts = Amounts()
        self._summary_steps = 0
        self._kept_until = NEVER
        """End of the newest step of the summaries, in ns of the rank's clock."""
        self._stored_facts: deque[bytes] = deque(maxlen=MAX_SUMMARIES)
        """The newest frames with facts of steps, while its file is read."""
        self._allowance = Allowance(STEPS_PER_SECOND, STEPS_AT_ONCE)
        self._behind: deque[_FrameBatch] = deque()
        self.clock = LatestClock(run.anchor)
        """Compares its clock with the collector's, as far as readings allow."""

    def add_frames(self, frames: Sequence[Frame], nbytes: int, next: int) -> None:
        """Adds frames that are written. `next` is the number of the frame that follows them."""
        if self.remote:
            self.remote, self.events, self._dropped = False, 0, None  # from now on its frames are counted
        self.seen = time.monotonic()
        self.byte_rate.add(nbytes, self.seen)
        self.arrived = next
        fresh = min(next - self.next, len(frames))
        if self.restoring or fresh <= 0:
            return
        self.next = next
        self._append(_FrameBatch(frames[len(frames) - fresh :], live=True), len(frames), nbytes)

    def summary_wait(self, summary: StepSummary | None = None) -> float:
        """Seconds until a sender may bring more, after this summary: its cost falls on the loop, and so on all streams."""
        steps = 0 if summary is None else count_steps(summary) + _SUMMARY_STEPS
        return self._allowance.use(steps, time.monotonic())

    def add_summary(self, summary: StepSummary) -> None:
        """Adds facts of new steps."""
        self.seen = self.heard_at = time.monotonic()
        self.left_out_steps = min(self.left_out_steps + summary.left_out, MAX_COUNT)
        steps = steps_in(summary)
        if not steps:
            return
        self.steps_at = self.seen
        if not self.restoring:  # else its files may have these steps, too
            self._add_steps(steps)
        for run in summary.runs:
            self.windows.stepped_to(run.window, run.first, run.first + len(run.steps) // STEP_BYTES - 1)
        self._keep(summary, steps)

    def _keep(self, summary: StepSummary, steps: Sequence[StepTime]) -> None:
        """Keeps the facts of new steps for verdicts. A journal has them twice if two exporters send it, and some come as its file is read."""
        if not is_after(steps[-1], self._kept_until):
            return
        self._kept_until = steps[-1].end
        self.shares = shares_of(summary, steps)
        self.summaries.append(JudgedSummary(summary))
        self._summary_steps += count_steps(summary)
        while self._summary_steps > MAX_STEPS and len(self.summaries) > 1:
            self._summary_steps -= count_steps(self.summaries.popleft().summary)

    def add_shared_summary(self, summary: StepSummary) -> None:
        """Adds facts of new steps that all collectors of the team get."""
        if self.remote:
            if self._summarized_at > 0:
                self.event_rate.add(max(summary.events - self.events, 0), time.monotonic())
            self.events = summary.events
            self._dropped = Counter({"journal": summary.lost})
        self.ended_elsewhere = self.ended_elsewhere or summary.ended
        self._summarized_at = time.monotonic()
        self.add_summary(summary)

    def finish_restoring(self) -> None:
        """Ends the reading of its files: their newest facts of steps count, and then facts that came meanwhile. Idempotent."""
        if not self.restoring:
            return
        self.restoring = False
        came = [each.summary for each in self.summaries]
        self.summaries.clear()
        self._summary_steps, self._kept_until = 0, NEVER
        self.steps_at = self.steps_at or self.seen
        while self._stored_facts:
            self._add_facts(self._stored_facts.popleft())
        for summary in came:
            steps = steps_in(summary)
            self._add_steps(steps)
            self._keep(summary, steps)

    def _add_facts(self, payload: fmt.Bytes) -> None:
        """Adds facts of steps from the file. The steps themselves are there already, as a rule."""
        try:
            summary = _decode_facts(payload)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            self.undecodable += 1
            return
        if steps := steps_in(summary):
            self.steps_at = self.seen
            self.steps.add_own_times(steps)
            self._add_steps(steps)
            self._keep(summary, steps)

    def _add_steps(self, steps: Sequence[StepTime]) -> None:
        latest = time.time_ns()
        self.steps.add_steps(steps, self.clock.offset_ns, min(self.born_ns - _HOUR, latest), latest)

    def add_restored(self, frames: Sequence[Frame], events: int, next: int) -> None:
        """Adds frames that were read from its file, and the number of events in other frames, which are not decoded."""
        self.events += events
        self.next = next
        self._append(_FrameBatch(frames, live=False), len(frames), sum(len(payload) for _, _, payload in frames))

    def _append(self, batch: _FrameBatch, count: int, nbytes: int) -> None:
        self._behind.append(batch)
        if len(self._behind) == 1 and count <= _FEW and nbytes <= _FEW_BYTES:
            self.decode()

    @property
    def behind(self) -> bool:
        """Whether there are frames that it has not decoded."""
        return bool(self._behind)

    def decode(self, seconds: float = math.inf) -> None:
        """Decodes frames, in their order, for so long: the last of them may take it some ms longer."""
        end, latest = time.perf_counter() + seconds, time.time_ns()
        late = False
        while self._behind and not late:
            batch = self._behind[0]
            before = self.events
            for kind, flags, payload in batch.frames:
                if batch.live:
                    self.bytes += fmt.FRAME_HEADER.size + len(payload)
                # A record that cannot be read costs itself: what is in the file is for the readers of the file to judge.
                try:
                    self._frame(kind, flags, payload, latest, batch)
                except (msgspec.MsgspecError, ValueError, RecursionError):
                    self.undecodable += 1
                if late := time.perf_counter() >= end:
                    break
            else:
                self._behind.popleft()
            if batch.live:
                self.event_rate.add(self.events - before, self.seen)

    def add_missing(self, frames: int, next: int) -> None:
        """Counts frames that are lost before frame `next`, which is written. Readers of the file see that as well."""
        if not self.restoring and next >= self.next:
            self.missing += frames

    def state(self, now: float) -> State:
        """Its state at a monotonic time in seconds."""
        if self.ended or (self.ended_elsewhere and self.connection is None):
            return State.ENDED
        if self.connection is not None or now - self._summarized_at < SILENT_AFTER:
            return State.SILENT if now - self.seen >= SILENT_AFTER else State.CONNECTED
        return State.DIED if self.superseded or now - self.seen >= DIED_AFTER else State.SILENT

    @property
    def amounts(self) -> Amounts:
        """The highest amounts that were reported for it: their sums do not fall when it is counted anew."""
        now = Amounts(self.events, self.bytes, self.lost, self.windows.discarded)
        self._amounts = self._amounts.highest(now)
        return self._amounts

    @property
    def lost(self) -> int:
        """Number of lost events: the sum of `dropped`."""
        return (self.windows.dropped if self._dropped is None else self._dropped).total() + self._capped

    @property
    def dropped(self) -> Counter[str]:
        """Lost events by the part that lost them and the reason, as far as ledgers have arrived."""
        lost = self.windows.dropped if self._dropped is None else self._dropped
        return lost + Counter({"journal/cap": self._capped})

    def _frame(self, kind: int, flags: int, payload: fmt.Bytes, latest: int, batch: _FrameBatch) -> None:
        if len(payload) > _MOST_BYTES.get(kind, fmt.MAX_PAYLOAD):
            self.undecodable += 1
            return
        match kind:
            case fmt.FrameType.EVENTS:
                self._events(flags, payload, latest, batch)
            case fmt.FrameType.CLOCK_SYNC:
                self._compared(decode_record(kind, bytes(payload)))
            case fmt.FrameType.STEP_FACTS:
                if self.restoring:
                    self._stored_facts.append(bytes(payload))
                elif not (self.sends_summaries and batch.live):  # else they came before
                    self._add_facts(payload)
            case fmt.FrameType.WINDOW_OPENED:
                self.windows.opened(payload)
            case fmt.FrameType.WINDOW_CLOSED:
                self.undecodable += not self.windows.closed(payload)
            case fmt.FrameType.LEDGER:
                ledger: Ledger | None = decode_record(kind, bytes(payload))
                self._dropped = None if ledger is None else losses(ledger)
            case fmt.FrameType.CAP:
                cap: CapRecord | None = decode_record(kind, bytes(payload))
                self._capped = self._capped if cap is None else cap.dropped
            case fmt.FrameType.END:
                self.ended = True
                self.windows.ended()
                end: EndRecord | None = decode_record(kind, bytes(payload))
                self.left_out_records = 0 if end is None else end.records_left_out
            case _:
                pass

    def _events(self, flags: int, payload: fmt.Bytes, latest: int, batch: _FrameBatch) -> None:
        found = fmt.decode_events_header(bytes(payload[: fmt.MAX_EVENTS_HEADER]))
        if found is None:
            self.undecodable += 1
            return
        header = found[0]
        self.events += header.count
        in_summaries = self.sends_summaries and batch.live
        if in_summaries and self.seen - self.heard_at < SILENT_AFTER:
            return
        if header.source == STEPS and header.body_bytes <= batch.step_bytes:
            batch.step_bytes -= header.body_bytes
            decoded = fmt.decode_unnamed(bytes(payload), flags)
            if decoded is None:
                self.undecodable += 1
                return
            events = decoded[0]
            self.windows.stepped(header.window, events["step"])
            if batch.live and (in_summaries or self.summaries):
                # Another than the process sends them, such as `stepscope deliver`, or their facts are in frames before these.
                events = self.steps.without_known(events)
                self.steps_at = time.monotonic() if len(events) else self.steps_at
            self.steps.add_events(events, self.clock.offset_ns, min(self.born_ns - _HOUR, latest), latest)

    def _compared(self, sync: ClockSync | None) -> None:
        if sync is None:
            self.undecodable += 1
            return
        self.clock.add(sync)

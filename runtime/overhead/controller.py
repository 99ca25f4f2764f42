"""Controls the overhead of one profiler: reads the meter, asks the governor for a level, and reports both."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable

import msgspec

from stepscope.runtime import _core
from stepscope.runtime.events import strings
from stepscope.runtime.events.intervals import Interval
from stepscope.runtime.events.record import Block, Kind, empty_block
from stepscope.runtime.overhead.budget import OverheadBudget, OverheadStatistics
from stepscope.runtime.overhead.governor import Governor
from stepscope.runtime.overhead.meter import EventCounts, RuntimeCpuClock, event_costs
from stepscope.runtime.schedule.detail import FULL, LEVELS, MARKS_ONLY, Detail, DetailFilter
from stepscope.runtime.threads import locks

OVERHEAD = "overhead"
"""Source of the events that show the cost of recording and changes of the level."""

OPERATOR_RATE_DECAY = 0.9
"""While operators are not recorded, their assumed rate decreases by this factor at each reading."""

_MAX_NOTES = 4
_MAX_CHANGES = 1024

_controllers: weakref.WeakSet[OverheadController] = weakref.WeakSet()


class DetailChange(msgspec.Struct, frozen=True):
    """A change of the level of detail, with the cost that was measured before, as a share of the time."""

    at: int
    step: int
    before: Detail
    after: Detail
    cost: float

    @property
    def direction(self) -> str:
        """`lowered` or `raised`."""
        return "lowered" if LEVELS.index(self.after) > LEVELS.index(self.before) else "raised"


class _Reading(msgspec.Struct, frozen=True):
    """Sums over the run. The difference of two readings belongs to the time between them."""

    counted: EventCounts
    recorded_ns: int
    transitions_ns: int
    background_ns: float
    left_out: tuple[int, int]


class OverheadController:
    """Runs on the loop. Without a budget it only measures."""

    def __init__(self, budget: OverheadBudget | None, filter: DetailFilter, *, transitions: Callable[[], int]) -> None:
        """Args: `transitions`: returns the time that changes of the action took on the program's threads so far, in ns."""
        self.budget = budget
        self.counted = EventCounts()
        self._filter = filter
        self._governor = Governor(budget.fraction) if budget else None
        self._transitions = transitions
        self._costs = event_costs()
        self._threads = RuntimeCpuClock()
        self._last_cpu_ns = self._last_total_events = self._last_own_events = 0
        self._background = 0.0
        self._requested: Detail | None = None
        """The level that the governor chose; it takes effect at a later step."""
        self._requested_cost = 0.0
        """The cost for which that level was chosen."""
        self._lock = locks.reentrant()
        self._recording_since: int | None = None
        self._recorded = 0
        self._detail = self._effective = FULL
        """The level, and the detail of the open window at this level."""
        self._changed_at = self._read_to = 0
        self._lowered_since: int | None = None
        self._lowered = 0
        self._left_out_before = sum(_core.left_out())
        self._operators = 0.0
        """Known or assumed number of operators per ns."""
        self._factor = 1.0
        """Ratio of the whole cost to the part on the program's threads."""
        self.changes: deque[DetailChange] = deque(maxlen=_MAX_CHANGES)
        self._change_count = 0
        _controllers.add(self)
        self._last = self._read()

    # called by the pipeline

    def begin(self, at: int) -> None:
        """Recording begins or resumes."""
        if self._recording_since is None:
            self._recording_since = at
            self._lowered_since = at if self._detail is not FULL else None

    def end(self, at: int) -> None:
        """Recording ends or pauses."""
        if self._recording_since is not None:
            self._recorded += at - self._recording_since
            self._end_lowered(at)
            self._recording_since = None

    def changed(self, at: int, step: int, detail: Detail, effective: Detail) -> DetailChange | None:
        """The steps that begin at `at` (ns) or later have this level. Returns the change of the level, if it is one.

        `effective` is the detail that is recorded at this level: less, if the request for the window asked for less.
        """
        self._effective = effective
        self._filter.change(at, effective)
        if detail is self._detail:
            return None
        before, self._detail, self._changed_at = self._detail, detail, at
        if detail is self._requested:
            self._requested = None
        if self._recording_since is not None:
            self._end_lowered(at)
            self._lowered_since = at if detail is not FULL else None
        change = DetailChange(at, step, before, detail, self._requested_cost)
        self.changes.append(change)
        self._change_count += 1
        return change

    def _end_lowered(self, at: int) -> None:
        if self._lowered_since is not None:
            self._lowered += at - self._lowered_since
            self._lowered_since = None

    # decisions

    def look(self, now: int) -> tuple[Detail | None, float | None]:
        """Reads the meter, if an interval is over; all events before `now` (ns) were counted. Returns the level to change to, or
        `None`; and the cost since the last reading, or `None` if nothing was read."""
        if self.budget is None or self._governor is None:
            return None, None
        reading = self._read(now)
        wall = reading.recorded_ns - self._last.recorded_ns
        if wall < self.budget.interval * 0.9e9:
            return None, None
        last, self._last = self._last, reading
        since, self._read_to = self._read_to, now
        cost, higher = self._measure(last, reading, wall)
        if self._requested is not None or since < self._changed_at:
            return None, cost  # a change waits for the next step(), or part of this time had another level
        detail = LEVELS[self._governor.update(cost, higher)]
        if detail is not self._detail:
            self._requested, self._requested_cost = detail, cost
        return self._requested, cost

    def _measure(self, last: _Reading, now: _Reading, wall: int) -> tuple[float, float]:
        """Returns the cost of the last interval, and the expected cost at the next higher level."""
        assert self.budget is not None
        counted = now.counted.minus(last.counted)
        training = counted.training_ns(self._costs)
        background = self.budget.background * (now.background_ns - last.background_ns)
        transitions = now.transitions_ns - last.transitions_ns
        cost = (training + background + transitions) / wall
        events, operators = (now.left_out[i] - last.left_out[i] for i in (0, 1))
        if self._effective.operators:
            self._operators = counted.operators / wall
            self._factor = 1 + background / training if training else 1.0
        else:
            # A backend may have switched operators off at their source, where they are not counted.
            self._operators = max(self._operators * OPERATOR_RATE_DECAY, operators / wall)
        missed = (
            events * self._costs.span if self._detail is MARKS_ONLY else self._operators * wall * self._costs.operator
        )
        return cost, cost + missed * self._factor / wall

    def _read(self, now: int | None = None) -> _Reading:
        threads = threading.enumerate()  # not with the lock, as it waits for one of Python's
        with self._lock:
            total = self._threads.read(threads)
            self._background += (total - self._last_cpu_ns) * self._share()
            self._last_cpu_ns = total
            since = self._recording_since
            recorded = self._recorded + (0 if now is None or since is None else max(now - since, 0))
            counted = msgspec.structs.replace(self.counted)
            return _Reading(counted, recorded, self._transitions(), self._background, _core.left_out())

    def refresh(self) -> None:
        """Reads the clocks of threads that may end soon."""
        self._read()

    def _share(self) -> float:
        """This profiler's share of the background work since the last reading, by number of events."""
        controllers = list(_controllers)
        total, own = sum(each.counted.total for each in controllers), self.counted.total
        new_total, new_own = total - self._last_total_events, own - self._last_own_events
        self._last_total_events, self._last_own_events = total, own
        return min(new_own / new_total, 1.0) if new_total > 0 else 1 / max(len(controllers), 1)

    # events, notes and statistics

    def change_event(self, change: DetailChange, at: int, track: int) -> tuple[Block, bytes]:
        """Returns a change as an instant, with its arguments; also for the level with which a window begins."""
        assert self.budget is not None
        args = _core.encode_arguments(
            {
                "before": change.before.name,
                "after": change.after.name,
                "measured %": round(change.cost * 100, 3),
                "budget %": round(self.budget.fraction * 100, 3),
            }
        )
        block = self._event(Kind.INSTANT, f"detail {change.direction}", at, track)
        block["args_len"] = len(args)
        return block, args

    def cost_event(self, cost: float, at: int, track: int) -> Block:
        """Returns a reading as a counter, in percent."""
        block = self._event(Kind.COUNTER, "overhead %", at, track)
        block["value"] = cost * 100
        return block

    def _event(self, kind: Kind, name: str, at: int, track: int) -> Block:
        block = empty_block(1)
        block["ts"], block["kind"], block["track"] = at, kind, track
        block["name"], block["category"] = strings.intern(name), strings.category(OVERHEAD)
        return block

    def notes(self, window: Interval) -> list[str]:
        """Describes the times of lowered detail in a window."""
        changes = list(self.changes)
        ends = [*(change.at for change in changes[1:]), window[1]][: len(changes)]
        found = [
            change
            for change, end in zip(changes, ends, strict=True)
            if change.after is not FULL and change.at < window[1] and end > window[0]
        ]
        notes = [
            f"detail {change.direction} to {change.after.name!r} from step {change.step} on: recording cost {change.cost:.2%} "
            f"of the time, the budget is {self.budget.fraction if self.budget else 1:.2%}; "
            "what this left out is not counted as lost"
            for change in found[:_MAX_NOTES]
        ]
        if len(found) > _MAX_NOTES:
            notes.append(f"detail changed {len(found) - _MAX_NOTES} more times")
        return notes

    def statistics(self) -> OverheadStatistics:
        """Returns the cost of recording until now. Any thread may call."""
        reading = self._read(_core.now())
        counted, lowered = reading.counted, self._lowered_since
        training = counted.training_ns(self._costs) + reading.transitions_ns
        return OverheadStatistics(
            recorded_ns=reading.recorded_ns,
            steps=counted.steps,
            events=counted.events,
            operators=counted.operators,
            training_ns=round(training),
            background_ns=round(reading.background_ns),
            detail=self._detail.name,
            budget=self.budget.fraction if self.budget else None,
            changes=self._change_count,
            lowered_ns=self._lowered + (0 if lowered is None else max(_core.now() - lowered, 0)),
            left_out=(sum(reading.left_out) - self._left_out_before if self.budget else 0) + self._filter.left_out,
        )

"""Keeps the cost of recording of one profiler within its budget: reads the meter, asks the governor, has the level changed."""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from stepscope.runtime import _core
from stepscope.runtime.events import strings
from stepscope.runtime.events.intervals import Interval
from stepscope.runtime.events.record import Block, Kind, empty_block
from stepscope.runtime.overhead.budget import OverheadBudget, OverheadStatistics
from stepscope.runtime.overhead.governor import Governor
from stepscope.runtime.overhead.meter import EventCosts, EventCounts, RuntimeCpuClock, event_costs
from stepscope.runtime.schedule.detail import FULL, LEVELS, MARKS_ONLY, Detail, DetailFilter
from stepscope.runtime.threads import locks

OVERHEAD = "overhead"
"""Source of the events that say what recording costs, and what was done about it."""

FADING = 0.9
"""Share of the rate of operators that is still believed one reading later, while they cannot be seen."""

_NOTES = 4
_STRETCHES = 1024

_controllers: weakref.WeakSet[OverheadController] = weakref.WeakSet()


class DetailChange(msgspec.Struct, frozen=True):
    """The level of detail changed."""

    at: int
    step: int
    before: Detail
    after: Detail
    cost: float
    """What was measured before it, as a share of the time."""

    @property
    def way(self) -> str:
        """`lowered` or `raised`."""
        return "lowered" if LEVELS.index(self.after) > LEVELS.index(self.before) else "raised"


class _Reading(msgspec.Struct, frozen=True):
    """Sums over the run; the difference of two is what happened between them."""

    counted: EventCounts
    recorded_ns: int
    transitions_ns: int
    background_ns: float
    left_out: tuple[int, int]


class OverheadController:
    """Lives on the loop. Without a budget it only measures."""

    def __init__(
        self,
        budget: OverheadBudget | None,
        filter: DetailFilter,
        *,
        transitions: Callable[[], int],
    ) -> None:
        """
        Args:
            budget: what recording may cost; `None`: anything.
            filter: is told of each change.
            transitions: time that changes of the action took from the program's threads so far, in ns.
        """
        self.budget = budget
        self.counted = EventCounts()
        self._filter = filter
        self._governor = Governor(budget.fraction) if budget else None
        self._transitions = transitions
        self._costs: EventCosts = event_costs()
        self._threads = RuntimeCpuClock()
        self._threads_seen = self._all_seen = self._own_seen = 0
        self._background = 0.0
        self._cause = 0.0
        """What was measured when the level was asked for that comes with a next step."""
        self._lock = locks.reentrant()
        self._since: int | None = None
        self._recorded = 0
        self._detail = self._in_force = FULL
        """The level, and what there is of it in the window that runs."""
        self._asked: Detail | None = None
        self._changed_at = self._read_to = 0
        self._lowered_since: int | None = None
        self._lowered = 0
        self._left_out_before = sum(_core.left_out())
        self._operators = 0.0
        """Operators in a ns, as far as is known."""
        self._factor = 1.0
        """What recording costs, as a multiple of what the program's threads pay for events."""
        self.changes: deque[DetailChange] = deque(maxlen=_STRETCHES)
        self._change_count = 0
        _controllers.add(self)
        self._last = self._read()
        self._rings = 0, 0
        """Events that the rings had been given at the last look, and when that was."""
        self._deciding = locks.reentrant()

    # what happens

    def begin(self, at: int) -> None:
        """Recording begins, or goes on."""
        if self._since is None:
            self._since = at
            self._rings = _core.ring_statistics()["produced"], at
            self._lowered_since = at if self._detail is not FULL else None

    def end(self, at: int) -> None:
        """Recording ends, or pauses."""
        if self._since is not None:
            self._recorded += at - self._since
            self._end_lowered(at)
            self._since = None

    def changed(self, at: int, step: int, detail: Detail, in_force: Detail) -> DetailChange | None:
        """The steps that begin at `at` (ns) or later have this level.

        Args:
            in_force: what is recorded at this level, which is less where a window was asked for with less.

        Returns:
            The change of the level, if it is one.
        """
        self._in_force = in_force
        self._filter.change(at, in_force)
        if detail is self._detail:
            return None
        before, self._detail, self._changed_at = self._detail, detail, at
        if detail is self._asked:
            self._asked = None
        if self._since is not None:
            self._end_lowered(at)
            self._lowered_since = at if detail is not FULL else None
        change = DetailChange(at, step, before, detail, self._cause)
        self.changes.append(change)
        self._change_count += 1
        return change

    def _end_lowered(self, at: int) -> None:
        if self._lowered_since is not None:
            self._lowered += at - self._lowered_since
            self._lowered_since = None

    # decisions

    def look(self, now: int) -> tuple[Detail | None, float | None]:
        """Reads the meter, if an interval is over.

        Args:
            now: everything that was recorded before this time was counted, in ns.

        Returns:
            The level to go to, if it changes, and the cost since the last reading, if there is one.
        """
        if self.budget is None:
            return None, None
        with self._deciding:
            reading = self._read(now)
            wall = reading.recorded_ns - self._last.recorded_ns
            if wall < self.budget.interval * 0.9e9:
                return None, None
            last, self._last = self._last, reading
            since, self._read_to = self._read_to, now
            cost, higher = self._measure(last, reading, wall)
            if self._asked is not None or since < self._changed_at:
                return None, cost  # A change waits for the next step(), or some of it was read at another level.
            return self._decide(cost, higher), cost

    def look_ahead(self, now: int, clock_now: int) -> Detail | None:
        """As `look`, on the thread that steps, which does not wait: where a load keeps the loop from its own looks.

        The rings tell how much was recorded before it was counted.

        Args:
            now: everything that was recorded before this time was counted, in ns.
            clock_now: the time, in ns.

        Returns:
            The level to go to, if it changes.
        """
        # Whoever decides now, does so for this caller, too.
        if not self._deciding.acquire(blocking=False):
            return None
        try:
            return self._look_behind(now, clock_now)
        finally:
            self._deciding.release()

    def _look_behind(self, now: int, clock_now: int) -> Detail | None:
        assert self.budget is not None
        begun, least = self._since, self.budget.interval * 0.5e9
        before, since = self._rings
        if begun is None or clock_now - since < least:
            return None
        produced = _core.ring_statistics()["produced"]
        self._rings = produced, clock_now
        if clock_now - max(now, begun) < least or since < self._changed_at:
            return None
        counted = self.counted.copy()
        number = counted.events + counted.operators
        each = self._training_ns(counted) / number if number else self._costs.span
        cost = (produced - before) * each / (clock_now - since)
        return self._decide(cost, math.inf) if cost > self.budget.fraction else None

    def _decide(self, cost: float, higher: float) -> Detail | None:
        if self._governor is None:
            return None
        detail = LEVELS[self._governor.update(cost, higher)]
        if detail is self._detail:
            return None
        self._asked, self._cause = detail, cost
        return detail

    def _training_ns(self, counted: EventCounts) -> float:
        """What events, operators among them, took from the program's threads."""
        return counted.events_ns(self._costs) + counted.operators_ns(self._costs)

    def _measure(self, last: _Reading, now: _Reading, wall: int) -> tuple[float, float]:
        """The cost of the last interval, and what it would have been at the next higher level."""
        assert self.budget is not None
        counted = now.counted.minus(last.counted)
        training = self._training_ns(counted)
        background = self.budget.background * (now.background_ns - last.background_ns)
        transitions = now.transitions_ns - last.transitions_ns
        cost = (training + background + transitions) / wall
        events, operators = (now.left_out[i] - last.left_out[i] for i in (0, 1))
        if self._in_force.operators:
            self._operators = counted.operators / wall
            self._factor = 1 + background / training if training else 1.0
        else:
            # A backend may have switched them off at their source, where nobody counts them.
            self._operators = max(self._operators * FADING, operators / wall)
        missed = (
            events * self._costs.span if self._detail is MARKS_ONLY else self._operators * wall * self._costs.operator
        )
        return cost, cost + missed * self._factor / wall

    def _read(self, now: int | None = None) -> _Reading:
        threads = threading.enumerate()
        with self._lock:
            total = self._threads.read(threads)
            self._background += (total - self._threads_seen) * self._share()
            self._threads_seen = total
            left_out = _core.left_out()
            counted = self.counted.copy()
            return _Reading(counted, self._recorded_by(now), self._transitions(), self._background, left_out)

    def refresh(self) -> None:
        """Reads the clocks of threads that may end soon."""
        self._read()

    def _share(self) -> float:
        """This profiler's share of what the background did since the last reading, by events."""
        everybody = list(_controllers)
        all_now, own_now = sum(one.counted.total for one in everybody), self.counted.total
        all_new, own_new = all_now - self._all_seen, own_now - self._own_seen
        self._all_seen, self._own_seen = all_now, own_now
        return min(own_new / all_new, 1.0) if all_new > 0 else 1 / max(len(everybody), 1)

    def _recorded_by(self, now: int | None) -> int:
        since = self._since
        return self._recorded + (0 if now is None or since is None else max(now - since, 0))

    # what is written

    def change_event(self, change: DetailChange, at: int, track: int) -> tuple[Block, bytes]:
        """A change as an instant, with its arguments; or the level with which a window begins."""
        assert self.budget is not None
        args = _core.encode_arguments(
            {
                "before": change.before.name,
                "after": change.after.name,
                "measured %": round(change.cost * 100, 3),
                "budget %": round(self.budget.fraction * 100, 3),
            }
        )
        block = self._event(Kind.INSTANT, f"detail {change.way}", at, track)
        block["args_len"] = len(args)
        return block, args

    def cost_event(self, cost: float, at: int, track: int) -> Block:
        """A reading as the value of a counter, in percent."""
        block = self._event(Kind.COUNTER, "overhead %", at, track)
        block["value"] = cost * 100
        return block

    def _event(self, kind: Kind, name: str, at: int, track: int) -> Block:
        block = empty_block(1)
        block["ts"], block["kind"], block["track"] = at, kind, track
        block["name"], block["category"] = strings.intern(name), strings.category(OVERHEAD)
        return block

    def _stretches(self, window: Interval) -> list[tuple[DetailChange, int]]:
        """The stretches of lowered detail that touch a window, with their ends."""
        changes = list(self.changes)
        ends = [*(change.at for change in changes[1:]), window[1]][: len(changes)]
        return [
            (change, min(end, window[1]))
            for change, end in zip(changes, ends, strict=True)
            if change.after is not FULL and change.at < window[1] and end > window[0]
        ]

    def notes(self, window: Interval) -> list[str]:
        """What is to be said of a window: its stretches of lowered detail."""
        found = self._stretches(window)
        shown = [
            f"detail {change.way} to {change.after.name!r} from step {change.step} on: recording cost {change.cost:.2%} "
            f"of the time, the budget is {self.budget.fraction if self.budget else 1:.2%}; "
            "what this left out is not counted as lost"
            for change, _ in found[:_NOTES]
        ]
        return shown + ([f"detail changed {len(found) - _NOTES} more times"] if len(found) > _NOTES else [])

    def facts(self, window: Interval) -> dict[str, Any]:
        """The same for the window's metadata; empty without a budget."""
        if self.budget is None:
            return {}
        stretches = [
            {
                "detail": change.after.name,
                "first_step": change.step,
                "start_ns": max(change.at, window[0]),
                "end_ns": end,
                "measured": change.cost,
            }
            for change, end in self._stretches(window)
        ]
        return {OVERHEAD: {"budget": self.budget.fraction, "lowered": stretches}}

    def statistics(self) -> OverheadStatistics:
        """What recording has cost until now; any thread."""
        reading = self._read(_core.now())
        counted, lowered = reading.counted, self._lowered_since
        training = self._training_ns(counted) + reading.transitions_ns
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

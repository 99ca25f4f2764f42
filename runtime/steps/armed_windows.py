"""The armed windows of a profiler that wait or run, and the changes of their ends that wait."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from stepscope.runtime.requests.armed import ArmedState
from stepscope.runtime.requests.armed_window import ArmedWindow
from stepscope.runtime.requests.end_change import EndChange, PendingEnd
from stepscope.runtime.requests.placement import place
from stepscope.runtime.schedule.schedule import NEVER, ScheduleFunction
from stepscope.runtime.threads import locks

MAX_ENDED = 64
"""Ended armed windows that `armed()` still returns."""


class ArmableSteps(Protocol):
    """The steps of a loop, as armed windows need them."""

    number: int
    """Of the current step."""
    next_change: int
    """The step at which a window may begin or end. A request lowers it."""
    live: bool
    """Whether the loop may be at the next step already."""
    state: str
    """In `closed` and `inert` nothing is armed."""
    schedule: ScheduleFunction


class ArmedWindows:
    """`Arming` adds windows, from any thread; `ArmedSchedule` begins and ends them, on the stepping thread.

    `lock` guards everything here, and is held by the caller. It is acquired only at steps that change the action. Schedules
    and backends are called without it, as they may be slow.
    """

    def __init__(self, name: str, steps: ArmableSteps) -> None:
        """Args: name of the profiler; its steps."""
        self.name = name
        self.steps = steps
        self.lock = locks.reentrant()
        self.open: list[ArmedWindow] = []
        """Running and waiting windows, in the order of their first steps."""
        self.past: deque[ArmedWindow] = deque(maxlen=MAX_ENDED)
        self.running: ArmedWindow | None = None
        self.ends: list[PendingEnd] = []
        """Changes of ends of windows that wait for a decision."""

    @property
    def waiting(self) -> list[ArmedWindow]:
        """Windows that have not begun."""
        return [window for window in self.open if window is not self.running]

    @property
    def deadline(self) -> int:
        """When the running window ends, in ns; 0: not by time. Any thread may read it without the lock."""
        window = self.running
        return 0 if window is None else window.deadline

    @property
    def idle(self) -> bool:
        """Whether no window waits, runs or is to end. Any thread may read it without the lock."""
        return not self.open and not self.ends

    def change_at(self, step: int) -> None:
        """Has the schedule asked at this step, or before."""
        self.steps.next_change = min(self.steps.next_change, step)

    def add(self, window: ArmedWindow) -> None:
        """Adds a window that waits."""
        self.open.append(window)
        self._sort()

    def drop(self, window: ArmedWindow, state: ArmedState, reason: str) -> None:
        """Moves a window that has ended, or will not begin, to the past windows."""
        self.open.remove(window)
        window.end(state, reason)
        self.past.append(window)

    def apply_end(self, change: EndChange) -> None:
        """Changes the ends of the windows that the change concerns."""
        for window in list(self.open):
            if not change.concerns(window):
                continue
            if change.command == "extend":
                self.extend(window, change.last, change.seconds)
            elif window.first > change.last:
                self.drop(window, "withdrawn", change.reason)
            elif window.last > change.last:
                window.last, window.abort_reason = change.last, change.reason
                self.change_at(change.last + 1)

    def extend(self, window: ArmedWindow, last: int, seconds: float) -> None:
        """Extends a window to a later step, or by seconds."""
        if seconds:
            if window.deadline:
                window.deadline += round(seconds * 1e9)
            else:
                window.longer += round(seconds * 1e9)
            window.note(f"extended by {seconds:g} s")
            return
        window.last = last
        window.note(f"extended to step {last}")

    def move(self, window: ArmedWindow, step: int) -> None:
        """Moves a window that waits to this step, or to the next one that begins a group."""
        window.move(step)
        self._sort()

    def step_was_set(self, by: int) -> None:
        """The program has changed the step number by this difference: waiting windows get new steps, counted from here. A running
        one retains its length."""
        waiting, self.open = self.open, []
        for window in waiting:
            self.open.append(window)
            if window is self.running:
                window.first = max(window.first + by, 0)
                window.last = window.last if window.last == NEVER else window.last + by
            elif not window.plan:
                others = self.open[:-1]
                first, last, reason, _ = place(window.request, self.steps.number, others, self.steps.schedule)
                if first is None:
                    self.drop(window, "missed", reason)
                else:
                    window.first, window.last, window.reason = first, last, reason
        self._sort()

    def become_inert(self) -> None:
        """Nothing runs any more."""
        self.running = None
        self.ends = []

    def _sort(self) -> None:
        self.open.sort(key=lambda each: each.first)

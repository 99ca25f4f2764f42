"""The armed windows of a profiler, in addition to those of its schedule: which wait and run, and when they begin and end."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Protocol

import msgspec

from stepscope.runtime.events import clock
from stepscope.runtime.requests.armed import ArmedState
from stepscope.runtime.requests.armed_window import ArmedWindow
from stepscope.runtime.requests.end_change import EndChange
from stepscope.runtime.requests.placement import place
from stepscope.runtime.requests.window_detail import WindowDetail
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.schedule.schedule import NEVER, ScheduleFunction
from stepscope.runtime.sources.source import Producer
from stepscope.runtime.threads import locks
from stepscope.runtime.windows.step_marks import WindowEnds

log = logging.getLogger("stepscope")

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
    """`Arming` adds windows and changes them, from any thread. The step controller has them begin and end, on the stepping thread.

    `lock` guards everything here. `Arming` acquires it for several calls at once; the methods for the stepping thread acquire
    it themselves, only at steps that change the action. Schedules and backends are called without it, as they may be slow.
    """

    def __init__(self, name: str, steps: ArmableSteps, backends: Sequence[Producer], title: str = "") -> None:
        """Args: name of the profiler; its steps; its backends, which may refuse a window's detail; how messages of the log begin, if not
        with the name."""
        self.name = name
        self.title = title or f"profiler {name!r}"
        self.steps = steps
        self.backends = backends
        self.lock = locks.reentrant()
        self.open: list[ArmedWindow] = []
        """Running and waiting windows, in the order of their first steps."""
        self.past: deque[ArmedWindow] = deque(maxlen=MAX_ENDED)
        self.running: ArmedWindow | None = None
        self.ends: dict[str, EndChange] = {}
        """Changes of ends of windows that wait for a decision, by their names."""
        self._ended: ArmedWindow | None = None
        """The window that ends in the current change."""
        self.detail: WindowDetail | None = None
        """The requested detail of the window that runs, or for which backends warm up."""

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
        """Extends a window to a later step, or by seconds. Queued windows that it reaches are moved behind it."""
        if seconds:
            if window.deadline:
                window.deadline += round(seconds * 1e9)
            else:
                window.longer += round(seconds * 1e9)
            window.note(f"extended by {seconds:g} s")
            return
        window.last = last
        window.note(f"extended to step {last}")
        for other in [other for other in self.open if other.first > window.first]:
            if other.first > last:
                continue
            if other.request.overlap == "refuse":
                log.warning(
                    "%s: a window was extended over another one, of %s, which will be missed",
                    self.title,
                    other.request.text(),
                )
                continue
            other.move(last + 1)  # at once, so that all ranks move it equally, and further requests see its steps
            last = other.last
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

    def _sort(self) -> None:
        self.open.sort(key=lambda each: each.first)

    # on the stepping thread

    def end_before(self, step: int, current: ProfilerAction) -> ArmedWindow | None:
        """Ends the running window if it is over when this step begins, but drops changes of ends that nobody decided on.

        Returns the window that has ended; its state says whether it was recorded. `current` is the action of the step before.
        """
        with self.lock:
            self._drop_undecided_ends(step)
            window, now = self.running, clock.now()
            if window is None or not window.is_over(step, now):
                return None
            aborted = window.abort_reason is not None and step > window.last
            window.last = step - 1
            if current is not ProfilerAction.RECORD:
                self._end(window, "missed", "the background loop was too far behind to record it")
            elif aborted:
                self._end(window, "aborted", f"aborted after step {window.last}: {window.abort_reason}")
            else:
                self._end(window, "recorded", "")
            return window

    def action(self, step: int, scheduled: ProfilerAction, current: ProfilerAction) -> ProfilerAction:
        """The action of a step by schedule and armed windows; `current` is that of the step before. Lowers `next_change`.

        The step counter knows all windows that are armed by now. `Arming` reports later ones to it.
        """
        with self.lock:
            action = self._with_armed(step, scheduled, current)
            window = self.running
            if window is None and action is ProfilerAction.WARMUP:
                window = next((each for each in self.open if each.begin <= step < each.first), None)
            self.detail = None if window is None else window.request.detail
            return action

    def cut(self, step: int, reason: str, *, alone: bool, recorded: bool) -> bool:
        """Ends the running window, as recording ends. Returns whether the window ends here as planned.

        Args:
            alone: whether this is the first step of the run. Only a run that never calls `step()` ends its step.
            recorded: whether it is recorded.
        """
        with self.lock:
            self.detail = None
            window = self.running
            if window is None:
                return False
            whole = recorded and alone and step == window.last and window.abort_reason is None
            window.last = step if alone else max(window.first, step - 1)
            self._end(window, "recorded" if whole else "cut", "" if whole else reason)
            return whole

    def completed(self, end: WindowEnds) -> WindowEnds:
        """The message of the window's end, with what became of the request for it."""
        window, self._ended = self._ended, None
        if window is None:
            return end
        if window.state == "aborted":
            end = msgspec.structs.replace(end, complete=False, reason=window.reason)
        facts = {"state": window.state, **({"note": window.reason} if window.reason else {})}
        return msgspec.structs.replace(end, armed=facts)

    def _end(self, window: ArmedWindow, state: ArmedState, reason: str) -> None:
        self.drop(window, state, reason)
        self.running, self._ended = None, window

    def _drop_undecided_ends(self, step: int) -> None:
        """Drops the changes of ends that matter from this step on: without a decision they have no effect."""
        for name, change in list(self.ends.items()):
            if step < change.decided_by:
                self.change_at(change.decided_by)
                continue
            del self.ends[name]
            log.info("%s: %s: nothing was decided by step %d", self.title, change.text(), step)

    def _with_armed(self, step: int, action: ProfilerAction, current: ProfilerAction) -> ProfilerAction:
        for window in self.waiting:
            if window not in self.open:
                continue
            if window.begin > step:
                self.change_at(window.begin)
                continue
            in_schedule = action.records and current is ProfilerAction.RECORD
            if not self._may_begin(window, step, in_schedule):
                continue
            if step < window.first:
                self.change_at(window.first)
                action = action if action.records else ProfilerAction.WARMUP
                continue
            self._begin(window)
        running = self.running
        if running is None:
            return action
        if running.last < NEVER:
            self.change_at(running.last + 1)
        return ProfilerAction.RECORD

    def _may_begin(self, window: ArmedWindow, step: int, in_schedule: bool) -> bool:
        running = self.running
        if running is not None and window.first <= running.last:
            if window.request.overlap == "queue" and running.last < NEVER:
                window.move(running.last + 1)
                self._sort()
                self.change_at(max(window.begin, step + 1))
                return False
            if step >= window.first:
                self.drop(window, "missed", "another armed window is being recorded")
                return False
        if step > window.first:
            if window.request.past == "refuse" or step > window.last:
                self.drop(window, "missed", f"the loop went to step {step} without passing step {window.first}")
                return False
            window.note(f"clipped: begun at step {step}")
            window.first = step
        if step == window.first and in_schedule:
            self.drop(window, "missed", "the schedule is in a window of its own")
            return False
        return self._admit(window, step)

    def _admit(self, window: ArmedWindow, step: int) -> bool:
        """Checks whether a window may begin: it was decided on, and backends support its detail, as they are open by now."""
        if window.proposed:
            self.drop(window, "withdrawn", f"nothing was decided by step {step}, when it was to begin")
            return False
        detail = window.request.detail
        if detail is None or window.detail_checked:
            return True
        window.detail_checked = True
        refused = locks.without(self.lock, lambda: detail.refusal(self.backends))
        if refused:
            log.warning("%s: the window of %s: %s", self.title, window.request.text(), refused)
        if window not in self.open:
            return False  # withdrawn meanwhile
        if refused:
            self.drop(window, "withdrawn", refused)
        return not refused

    def _begin(self, window: ArmedWindow) -> None:
        window.state = "running"
        if window.request.seconds is not None:
            window.deadline = clock.now() + round(window.request.seconds * 1e9) + window.longer
        self.running = window

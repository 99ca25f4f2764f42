"""Armed windows on the stepping thread: when they begin and end, in addition to those of the schedule."""

from __future__ import annotations

import logging
from collections import deque
from functools import partial
from typing import Any

from stepscope.runtime.events import clock
from stepscope.runtime.export.metadata import Metadata
from stepscope.runtime.inbox.messages import ActionChanged
from stepscope.runtime.requests.armed import ArmedState
from stepscope.runtime.requests.armed_window import ArmedWindow
from stepscope.runtime.requests.end_change import EndChange, PendingEnd
from stepscope.runtime.requests.window_detail import WindowDetail
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.schedule.schedule import NEVER, ScheduleFunction
from stepscope.runtime.sources.source import Producer
from stepscope.runtime.sources.thread_bound import BoundSource
from stepscope.runtime.steps.step_controller import StepController
from stepscope.runtime.threads import locks
from stepscope.runtime.windows.borders import WindowEnds

log = logging.getLogger("stepscope")

MAX_ENDED = 64
"""Ended armed windows that `armed()` still returns."""


class ArmedWindows(StepController):
    """The part of a profiler that begins and ends armed windows, on the stepping thread.

    A lock guards the windows. It is acquired only at steps that change the action. Schedules, gates and backends are called
    without it, as they may be slow.
    """

    def __init__(self, name: str, schedule: ScheduleFunction) -> None:
        super().__init__(name, schedule)
        self._arming = locks.reentrant()
        self._armed: list[ArmedWindow] = []
        """Running and waiting windows, in the order of their first steps."""
        self._armed_past: deque[ArmedWindow] = deque(maxlen=MAX_ENDED)
        self._missed = 0
        """Windows of other ranks for which this one was too late."""
        self._rank: int | None = None
        self._backends: list[Producer] = []
        self._metadata = Metadata()
        self._armed_running: ArmedWindow | None = None
        self._armed_ended: ArmedWindow | None = None
        """The window that ends in the current change."""
        self._ends: list[PendingEnd] = []
        """Changes of ends of windows that wait for their gates."""

    def _drop(self, window: ArmedWindow, state: ArmedState, reason: str) -> None:
        """Moves a window that has ended, or will not begin, to the past windows."""
        self._armed.remove(window)
        window.end(state, reason)
        self._armed_past.append(window)

    def _become_inert(self, reason: str) -> None:
        self._arming = locks.reentrant()
        self._armed_running = None
        self._ends = []
        super()._become_inert(reason)

    # where step() is called

    def _ask(self, step: int) -> ProfilerAction:
        action = super()._ask(step)
        # The counter knows all windows that are armed by now. `arm()` reports later ones to it.
        with self._arming:
            self._chosen = None
            self._decide_ends(step)
            if not self._armed:
                return action
            if self._end_armed(step):
                locks.without(self._arming, lambda: self._was_last(clock.now()))
            action = self._with_armed(step, action)
            self._chosen = self._detail_for(step, action)
            return action

    def _detail_for(self, step: int, action: ProfilerAction) -> WindowDetail | None:
        """The detail of the window that runs, or for which backends warm up now."""
        window = self._armed_running
        if window is None and action is ProfilerAction.WARMUP:
            window = next((each for each in self._armed if each.begin <= step < each.first), None)
        return None if window is None else window.request.detail

    def _is_due(self, at: int) -> bool:
        window = self._armed_running
        return window is not None and 0 < window.deadline <= at

    def _decide_ends(self, step: int) -> None:
        """Applies the changes of ends that matter from this step on, if their gates permit them."""
        for pending in list(self._ends):
            if step < pending.change.decided_by:
                self._next_change = min(self._next_change, pending.change.decided_by)
                continue
            if pending not in self._ends:
                continue  # confirmed or withdrawn during the call of another gate
            self._ends.remove(pending)
            refused = locks.without(self._arming, partial(pending.gate, step))
            if refused:
                log.info("profiler %r: %s: %s", self.name, pending.change.text(), refused)
            else:
                self._apply_end(pending.change)

    def _apply_end(self, change: EndChange) -> None:
        for window in list(self._armed):
            if not change.concerns(window):
                continue
            if change.command == "extend":
                self._extend(window, change.last, change.seconds)
            elif window.first > change.last:
                self._drop(window, "withdrawn", change.reason)
            elif window.last > change.last:
                window.last, window.abort_reason = change.last, change.reason
                self._next_change = min(self._next_change, change.last + 1)

    def _extend(self, window: ArmedWindow, last: int, seconds: float) -> None:
        """Extends a window to a later step, or by seconds."""
        if seconds:
            if window.deadline:
                window.deadline += round(seconds * 1e9)
                self._set_look()
            else:
                window.longer += round(seconds * 1e9)
            window.note(f"extended by {seconds:g} s")
            return
        window.last = last
        window.note(f"extended to step {last}")
        for other in [other for other in self._armed if window.first < other.first < NEVER]:
            if other.first > last:
                continue
            if other.request.overlap == "refuse":
                log.warning(
                    "profiler %r: a window was extended over another one, of %s, which will be refused",
                    self.name,
                    other.request.text(),
                )
                continue
            other.move(last + 1)  # at once, so that all ranks move it equally
            last = other.last
        self._armed.sort(key=lambda each: each.first)

    def _end_armed(self, step: int) -> bool:
        """Ends the running window if it is over. Returns whether its last step was recorded."""
        window, now = self._armed_running, clock.now()
        if window is None or not window.is_over(step, now):
            return False
        aborted = window.abort_reason is not None and step > window.last
        window.last = step - 1
        recorded = self._action is ProfilerAction.RECORD
        if not recorded:
            self._drop(window, "missed", "the background loop was too far behind to record it")
            self._planned = ProfilerAction.RECORD_AND_SAVE
        elif aborted:
            self._drop(window, "aborted", f"aborted after step {window.last}: {window.abort_reason}")
        else:
            self._drop(window, "recorded", "")
        self._armed_running, self._armed_ended = None, window
        self._set_look()
        return recorded

    def _release(self, step: int) -> None:
        """Lets the first window begin that waits for the end of another one."""
        for window in self._armed:
            if window.first == NEVER:
                group, length = window.request.granularity, window.request.length
                window.first = -(-step // group) * group
                window.last = NEVER if length is None else window.first + -(-length // group) * group - 1
                break

    def _was_last(self, at: int) -> None:
        """Reports to backends that the step that ends now was the last of its window."""
        pipeline = self._pipeline
        if pipeline is None:
            return
        for source in pipeline.sources:
            if isinstance(source, BoundSource):
                source.transition(ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE, at)
        pipeline.inbox.put(ActionChanged(ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE, at))
        self._action = self._planned = ProfilerAction.RECORD_AND_SAVE

    def _with_armed(self, step: int, action: ProfilerAction) -> ProfilerAction:
        """The action of a step by schedule and armed windows. Sets the step of the next change."""
        running = self._armed_running
        if running is None:
            self._release(step)
        for window in list(self._armed):
            if window is running or window.first == NEVER or window not in self._armed:
                continue
            if window.begin > step:
                self._next_change = min(self._next_change, window.begin)
                continue
            if not self._may_begin(window, step, action):
                continue
            if step < window.first:
                self._next_change = min(self._next_change, window.first)
                action = action if action.records else ProfilerAction.WARMUP
                continue
            running = self._armed_running = self._begin_armed(window)
        if running is None:
            return action
        if running.last < NEVER:
            self._next_change = min(self._next_change, running.last + 1)
        return ProfilerAction.RECORD

    def _may_begin(self, window: ArmedWindow, step: int, action: ProfilerAction) -> bool:
        running = self._armed_running
        if running is not None:
            if window.request.overlap == "queue":
                length = window.last - window.first
                window.first = NEVER if running.last == NEVER else running.last + 1
                window.last = window.first if window.first == NEVER else window.first + length
                if window.first < NEVER:
                    self._next_change = min(self._next_change, max(window.begin, step + 1))
                return False
            if step >= window.first:
                self._drop(window, "missed", "another armed window is being recorded")
                return False
        if step > window.first:
            if window.request.past == "refuse" or step > window.last:
                self._drop(window, "missed", f"the loop went to step {step} without passing step {window.first}")
                return False
            window.note(f"clipped: begun at step {step}")
            window.first = step
        if step == window.first and action.records and self._action is ProfilerAction.RECORD:
            self._drop(window, "missed", "the schedule is in a window of its own")
            return False
        return self._admit(window, step)

    def _admit(self, window: ArmedWindow, step: int) -> bool:
        """Checks whether a window may begin: its detail, as backends are open by now, and its gate."""
        detail, window.detail_checked = None if window.detail_checked else window.request.detail, True
        gate = None if window.admitted else window.gate
        if detail is None and gate is None:
            return True

        def ask() -> str:
            refused = "" if detail is None else detail.refusal(self._backends)
            if refused:
                log.warning("profiler %r: the window of %s: %s", self.name, window.request.text(), refused)
            return refused if refused or gate is None else gate(step)

        refused = locks.without(self._arming, ask)
        if window not in self._armed:
            return False  # withdrawn meanwhile
        window.admitted = not refused
        if refused:
            self._drop(window, "withdrawn", refused)
        return not refused

    def _begin_armed(self, window: ArmedWindow) -> ArmedWindow:
        window.state = "running"
        window.begun_at = clock.now()
        if window.request.seconds is not None:
            window.deadline = window.begun_at + round(window.request.seconds * 1e9) + window.longer
        self._armed_running = window
        self._set_look()
        return window

    def _set_look(self) -> None:
        """Makes the step counter read the clock where the overhead budget or the end of the running window needs it."""
        window = self._armed_running
        times = [at for at in (self._budget_at, window.deadline if window is not None else 0) if at]
        self._look_at = min(times, default=0)

    def _end_steps(self, reason: str) -> None:
        whole = False
        with self._arming:
            window, step = self._armed_running, self._step
            if window is not None:
                # Only a run that never calls step() ends its step.
                alone = step == self._first_step
                planned = alone and step == window.last and window.abort_reason is None
                whole = planned and self._action is ProfilerAction.RECORD
                window.last = step if alone else max(window.first, step - 1)
                self._drop(window, "recorded" if whole else "cut", "" if whole else reason)
                self._armed_running, self._armed_ended = None, window
                self._set_look()
            self._chosen = None
        if whole:
            self._was_last(clock.now())
        super()._end_steps(reason)

    def _window_begins(self) -> dict[str, Any] | None:
        window = self._armed_running
        return None if window is None else window.facts()

    def _window_ends(self, end: WindowEnds) -> WindowEnds:
        window, self._armed_ended = self._armed_ended, None
        if window is None:
            return end
        facts: dict[str, Any] = {"state": window.state, **({"note": window.reason} if window.reason else {})}
        complete, reason = end.complete, end.reason
        if window.state == "aborted":
            complete, reason = False, window.reason
        return WindowEnds(end.at, complete, reason, end.cut_short, end.needs_last, armed=facts)

"""Armed windows on the stepping thread: when they begin and end, in addition to those of the schedule."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from stepscope.runtime.events import clock
from stepscope.runtime.requests.armed import ArmedState
from stepscope.runtime.requests.armed_window import ArmedWindow
from stepscope.runtime.requests.window_detail import WindowDetail
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.schedule.schedule import NEVER
from stepscope.runtime.sources.source import Producer
from stepscope.runtime.steps.armed_windows import ArmedWindows
from stepscope.runtime.threads import locks
from stepscope.runtime.windows.borders import WindowEnds

log = logging.getLogger("stepscope")


class ArmedSchedule:
    """Begins and ends armed windows, at the steps at which the step controller asks."""

    def __init__(self, windows: ArmedWindows, backends: Sequence[Producer]) -> None:
        """Args: the windows; the backends, which may refuse a window's detail."""
        self._windows = windows
        self._backends = backends
        self._ended: ArmedWindow | None = None
        """The window that ends in the current change."""
        self.detail: WindowDetail | None = None
        """The requested detail of the window that runs, or for which backends warm up."""

    def is_due(self, at: int) -> bool:
        """Whether the running window ends by time, not by step number, until `at`, in ns."""
        return 0 < self._windows.deadline <= at

    def end_before(self, step: int, current: ProfilerAction) -> ArmedWindow | None:
        """Ends the running window if it is over when this step begins, after the changes of ends that were not decided on in time.

        Args:
            step: the step that begins.
            current: the action of the step before.

        Returns:
            The window that has ended; its state says whether it was recorded.
        """
        with self._windows.lock:
            self._drop_undecided_ends(step)
            window, now = self._windows.running, clock.now()
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
        """The action of a step by schedule and armed windows. Lowers the step of the next change.

        The step counter knows all windows that are armed by now. `Arming` reports later ones to it.

        Args:
            step: the step that begins.
            scheduled: its action by the schedule.
            current: the action of the step before.
        """
        with self._windows.lock:
            action = self._with_armed(step, scheduled, current)
            window = self._windows.running
            if window is None and action is ProfilerAction.WARMUP:
                window = next((each for each in self._windows.open if each.begin <= step < each.first), None)
            self.detail = None if window is None else window.request.detail
            return action

    def cut(self, step: int, reason: str, *, alone: bool, recorded: bool) -> bool:
        """Ends the running window, as recording ends.

        Args:
            step: the current step.
            reason: why recording ends.
            alone: whether it is the first step of the run. Only a run that never calls `step()` ends its step.
            recorded: whether it is recorded.

        Returns:
            Whether the window ends here as planned.
        """
        with self._windows.lock:
            self.detail = None
            window = self._windows.running
            if window is None:
                return False
            whole = recorded and alone and step == window.last and window.abort_reason is None
            window.last = step if alone else max(window.first, step - 1)
            self._end(window, "recorded" if whole else "cut", "" if whole else reason)
            return whole

    def facts_of_begin(self) -> dict[str, Any] | None:
        """Description of the request for the window that begins; `None` if the schedule begins it."""
        window = self._windows.running
        return None if window is None else window.facts()

    def completed(self, end: WindowEnds) -> WindowEnds:
        """The message of the window's end, with what became of the request for it."""
        window, self._ended = self._ended, None
        if window is None:
            return end
        facts: dict[str, Any] = {"state": window.state, **({"note": window.reason} if window.reason else {})}
        complete, reason = end.complete, end.reason
        if window.state == "aborted":
            complete, reason = False, window.reason
        return WindowEnds(end.at, complete, reason, end.cut_short, end.needs_last, armed=facts)

    def _end(self, window: ArmedWindow, state: ArmedState, reason: str) -> None:
        self._windows.drop(window, state, reason)
        self._windows.running, self._ended = None, window

    def _drop_undecided_ends(self, step: int) -> None:
        """Drops the changes of ends that matter from this step on: without a decision they have no effect."""
        windows = self._windows
        for pending in list(windows.ends):
            if step < pending.change.decided_by:
                windows.change_at(pending.change.decided_by)
                continue
            windows.ends.remove(pending)
            log.info("profiler %r: %s: nothing was decided by step %d", windows.name, pending.change.text(), step)

    def _with_armed(self, step: int, action: ProfilerAction, current: ProfilerAction) -> ProfilerAction:
        windows = self._windows
        for window in windows.waiting:
            if window not in windows.open:
                continue
            if window.begin > step:
                windows.change_at(window.begin)
                continue
            in_schedule = action.records and current is ProfilerAction.RECORD
            if not self._may_begin(window, step, in_schedule):
                continue
            if step < window.first:
                windows.change_at(window.first)
                action = action if action.records else ProfilerAction.WARMUP
                continue
            self._begin(window)
        running = windows.running
        if running is None:
            return action
        if running.last < NEVER:
            windows.change_at(running.last + 1)
        return ProfilerAction.RECORD

    def _may_begin(self, window: ArmedWindow, step: int, in_schedule: bool) -> bool:
        windows, running = self._windows, self._windows.running
        if running is not None and window.first <= running.last:
            if window.request.overlap == "queue" and running.last < NEVER:
                windows.move(window, running.last + 1)
                windows.change_at(max(window.begin, step + 1))
                return False
            if step >= window.first:
                windows.drop(window, "missed", "another armed window is being recorded")
                return False
        if step > window.first:
            if window.request.past == "refuse" or step > window.last:
                windows.drop(window, "missed", f"the loop went to step {step} without passing step {window.first}")
                return False
            window.note(f"clipped: begun at step {step}")
            window.first = step
        if step == window.first and in_schedule:
            windows.drop(window, "missed", "the schedule is in a window of its own")
            return False
        return self._admit(window, step)

    def _admit(self, window: ArmedWindow, step: int) -> bool:
        """Checks whether a window may begin: it was decided on, and backends support its detail, as they are open by now."""
        if window.proposed:
            self._windows.drop(window, "withdrawn", f"nothing was decided by step {step}, when it was to begin")
            return False
        detail = window.request.detail
        if detail is None or window.detail_checked:
            return True
        window.detail_checked = True
        refused = locks.without(self._windows.lock, lambda: detail.refusal(self._backends))
        if refused:
            log.warning("profiler %r: the window of %s: %s", self._windows.name, window.request.text(), refused)
        if window not in self._windows.open:
            return False  # withdrawn meanwhile
        if refused:
            self._windows.drop(window, "withdrawn", refused)
        return not refused

    def _begin(self, window: ArmedWindow) -> None:
        window.state = "running"
        window.begun_at = clock.now()
        if window.request.seconds is not None:
            window.deadline = window.begun_at + round(window.request.seconds * 1e9) + window.longer
        self._windows.running = window

"""Arming: windows that are asked for while the program runs, from any thread, on top of the profiler's schedule."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Any

from stepscope.runtime import clock
from stepscope.runtime.action import ProfilerAction
from stepscope.runtime.bound import BoundSource
from stepscope.runtime.control.armed import Armed, ArmedState, ArmedStatus
from stepscope.runtime.control.armed_window import ArmedWindow, Gate
from stepscope.runtime.control.placement import place
from stepscope.runtime.control.window_request import WindowRequest
from stepscope.runtime.messages import ActionChanged, WindowEnds
from stepscope.runtime.schedule import NEVER, ScheduleFunction
from stepscope.runtime.stepping import Stepping

log = logging.getLogger("stepscope")

KEPT = 64
"""Armed windows that are over and still told of."""
MOST_WAITING = 64
"""Armed windows that may wait at a time."""


class Arming(Stepping):
    """The half of a profiler that takes requests for windows.

    A request costs the training thread nothing until its first step: it lowers the number of the step at which the
    native counter calls `_transition`. A lock guards the windows; it is taken at changes of the action, never at others.
    """

    def __init__(self, name: str, schedule: ScheduleFunction) -> None:
        super().__init__(name, schedule)
        self._arming = threading.RLock()  # reentrant: a signal handler may arm while its thread holds it
        self._armed: list[ArmedWindow] = []
        """Those that run or are to come, by their first steps."""
        self._armed_over: deque[ArmedWindow] = deque(maxlen=KEPT)
        self._rank: int | None = None
        self._armed_running: ArmedWindow | None = None
        self._armed_ended: ArmedWindow | None = None
        """The one that ends in the change that is under way."""

    # from any thread

    def arm(self, request: WindowRequest, *, trigger: str = "call", gate: Gate | None = None) -> Armed:
        """Has a window recorded, on top of what the schedule records; any time, from any thread, and never waits.

        Before `start()` it is remembered for then. A profiler without a schedule of its own, which records everything,
        refuses; `trace(control=...)` makes one that records what it is asked for only.

        Args:
            request: what is to be recorded.
            trigger: what asks for it, in a word; for the window's metadata.
            gate: asked once, where `step()` is called, when the window is to begin: a text is the reason why it must not.

        Returns:
            Which steps will be recorded, or why none will.

        Raises:
            TypeError: if the request is none.
        """
        if not isinstance(request, WindowRequest):
            raise TypeError(f"arm() takes a stepscope.WindowRequest, got {type(request).__name__}: {request!r}")
        run_id = request.run_id
        if self._state in ("closed", "inert"):
            return Armed(False, run_id=run_id, reason=f"profiler {self.name!r} is {self._state}")
        if not request.wants(self._rank):
            return Armed(False, run_id=run_id, reason=f"rank {self._rank or 0} is not among the ranks that record")
        with self._arming:
            if len(self._armed) >= MOST_WAITING:
                return Armed(False, run_id=run_id, reason=f"{MOST_WAITING} windows wait already")
            spare = 0
            while True:
                ahead = self._step + (1 if self._live else 0) + spare
                first, last, reason, nearest = place(request, ahead, self._armed, self.schedule)
                if first is None:
                    return Armed(False, run_id=run_id, reason=reason, nearest=nearest)
                window = ArmedWindow(request, trigger, first, last, gate)
                if reason:
                    window.note(reason)
                # The change must be known to the counter before the step begins; the loop may be faster than this.
                self._next_change = min(self._next_change, max(window.begin, ahead))
                if not self._live or self._step < first:
                    break
                spare = 2 * spare + 1
            self._armed.append(window)
            self._armed.sort(key=lambda each: each.first)
            return self._answer(window)

    def extend(self, steps: int = 0, *, seconds: float = 0.0) -> Armed:
        """Lets the armed window that runs go on for longer.

        Args:
            steps: so many steps more, rounded up to the window's granularity; for a window of steps.
            seconds: so much longer; for a window of seconds.

        Returns:
            The steps that the window has now, or why it stays as it was.
        """
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0 or seconds < 0:
            return Armed(False, reason=f"extend takes a number of steps or seconds, got {steps!r} and {seconds!r}")
        with self._arming:
            window = self._armed_running
            if window is None:
                return Armed(False, reason="no armed window runs")
            if bool(steps) == bool(seconds) or window.timed != bool(seconds):
                unit = "seconds" if window.timed else "steps"
                return Armed(
                    False, run_id=window.request.run_id, reason=f"the window is one of {unit}: say how many more"
                )
            if seconds:
                window.deadline += round(seconds * 1e9)
                self._set_look()
                window.note(f"extended by {seconds:g} s")
            else:
                group = window.request.granularity
                window.last += -(-steps // group) * group
                window.note(f"extended to step {window.last}")
                for other in self._armed:
                    if other is not window and other.first <= window.last and other.request.overlap == "refuse":
                        log.warning("profiler %r: a window was extended over another one, of %s, which will be refused",
                                    self.name, other.request.text())  # fmt: skip
            return self._answer(window)

    def abort(self, run_id: str | None = None, *, reason: str = "abort() was called") -> tuple[ArmedStatus, ...]:
        """Ends the armed window that runs with the current step, and forgets those that wait.

        What was recorded is delivered, marked as incomplete, and named after the steps that it has.

        Args:
            run_id: only windows of this run id; default: all.
            reason: what diagnostics say.

        Returns:
            The windows that this ends; none if there was nothing to end.
        """
        ended: list[ArmedStatus] = []
        with self._arming:
            for window in list(self._armed):
                if run_id is not None and window.request.run_id != run_id:
                    continue
                if window is self._armed_running:
                    window.abort_reason = reason
                else:
                    self._drop(window, "withdrawn", reason)
                ended.append(window.status())
            if ended:
                self._next_change = min(self._next_change, self._step + 1)
        return tuple(ended)

    def withdraw(self, gate: Gate, reason: str) -> bool:
        """Forgets the window that waits with this gate; returns whether there was one."""
        with self._arming:
            for window in self._armed:
                if window.gate is gate and window is not self._armed_running:
                    self._drop(window, "withdrawn", reason)
                    return True
        return False

    def armed(self) -> tuple[ArmedStatus, ...]:
        """The windows that were armed: the latest that are over, then the one that runs, then those that wait."""
        with self._arming:
            return tuple(window.status() for window in (*self._armed_over, *self._armed))

    def _armed_notes(self) -> tuple[str, ...]:
        """What came to less than was asked for."""
        return tuple(
            f"armed window of {status.requested}: {status.state}: {status.reason}"
            for status in self.armed()
            if status.state in ("missed", "withdrawn", "aborted")
        )

    @staticmethod
    def _answer(window: ArmedWindow) -> Armed:
        status = window.status()
        return Armed(True, status.first, status.last, status.run_id, status.reason)

    def _drop(self, window: ArmedWindow, state: ArmedState, reason: str) -> None:
        """A window that will not begin, or has ended, is kept for those who ask."""
        self._armed.remove(window)
        window.end(state, reason)
        self._armed_over.append(window)

    def _step_was_set(self) -> None:
        """Windows that were asked for before get their steps anew, counted from here."""
        with self._arming:
            waiting, self._armed = self._armed, []
            for window in waiting:
                if window.gate is not None:  # its steps are agreed on with others
                    self._armed.append(window)
                    continue
                first, last, reason, _ = place(window.request, self._step, self._armed, self.schedule)
                self._armed.append(window)
                if first is None:
                    self._drop(window, "missed", reason)
                else:
                    window.first, window.last, window.reason = first, last, reason
            self._armed.sort(key=lambda each: each.first)

    def _become_inert(self, reason: str) -> None:
        self._arming = threading.RLock()
        self._armed_running = None
        super()._become_inert(reason)

    # where step() is called

    def _ask(self, step: int) -> ProfilerAction:
        with self._arming:  # or a window could be armed between two readings, and the counter not be told of it
            action = super()._ask(step)
            if not self._armed:
                return action
            self._end_armed(step)
            return self._with_armed(step, action)

    def _is_due(self, at: int) -> bool:
        window = self._armed_running
        return window is not None and 0 < window.deadline <= at

    def _end_armed(self, step: int) -> None:
        window, now = self._armed_running, clock.now()
        if window is None or not window.is_over(step, now):
            return
        window.last = step - 1
        if self._action is not ProfilerAction.RECORD:
            self._drop(window, "missed", "the background loop was too far behind to record it")
            self._planned = ProfilerAction.RECORD_AND_SAVE
        elif window.abort_reason is None:
            self._was_last(now)
            self._drop(window, "recorded", "")
        else:
            self._was_last(now)
            self._drop(window, "aborted", f"aborted after step {window.last}: {window.abort_reason}")
        self._armed_running, self._armed_ended = None, window
        self._set_look()

    def _release(self, step: int) -> None:
        """The first window that waits for the end of another one may begin."""
        for window in self._armed:
            if window.first == NEVER:
                group, length = window.request.granularity, window.request.length
                window.first = -(-step // group) * group
                window.last = NEVER if length is None else window.first + -(-length // group) * group - 1
                break

    def _was_last(self, at: int) -> None:
        """The step that ends now was the last of its window: backends are told as if it had been known before."""
        pipeline = self._pipeline
        if pipeline is None:
            return
        for source in pipeline.sources:
            if isinstance(source, BoundSource):
                source.transition(ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE, at)
        pipeline.inbox.put(ActionChanged(ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE, at))
        self._action = self._planned = ProfilerAction.RECORD_AND_SAVE

    def _with_armed(self, step: int, action: ProfilerAction) -> ProfilerAction:
        """What a step does by the schedule and the armed windows together; sets when that changes next."""
        running = self._armed_running
        if running is None:
            self._release(step)
        for window in list(self._armed):
            if window is running or window.first == NEVER:
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
        if window.gate is not None and not window.admitted:
            refused = window.gate(step)
            if refused:
                self._drop(window, "withdrawn", refused)
                return False
            window.admitted = True
        return True

    def _begin_armed(self, window: ArmedWindow) -> ArmedWindow:
        window.state = "running"
        window.begun_at = clock.now()
        if window.request.seconds is not None:
            window.deadline = window.begun_at + round(window.request.seconds * 1e9)
        self._armed_running = window
        self._set_look()
        return window

    def _set_look(self) -> None:
        """Has the counter look at the clock where the overhead budget or the end of a window wants it."""
        window = self._armed_running
        times = [at for at in (self._budget_at, window.deadline if window is not None else 0) if at]
        self._look_at = min(times, default=0)

    def _end_steps(self, reason: str) -> None:
        with self._arming:
            window, step = self._armed_running, self._step
            if window is not None:
                whole = step == window.last and self._action is ProfilerAction.RECORD
                if whole:
                    self._was_last(clock.now())
                window.last = step
                self._drop(window, "recorded" if whole else "cut", "" if whole else reason)
                self._armed_running, self._armed_ended = None, window
                self._set_look()
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

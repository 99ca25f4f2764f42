"""Arming: requests for windows while the program runs, from any thread, in addition to the profiler's schedule."""

from __future__ import annotations

from stepscope.runtime.requests.armed import Armed, ArmedStatus
from stepscope.runtime.requests.armed_window import ArmedWindow, Gate
from stepscope.runtime.requests.end_change import EndChange, PendingEnd
from stepscope.runtime.requests.placement import place
from stepscope.runtime.requests.window_request import MAX_STEP, WindowRequest
from stepscope.runtime.schedule.schedule import NEVER
from stepscope.runtime.settings.arguments import got
from stepscope.runtime.steps.armed_windows import ArmedWindows

MAX_WAITING = 64
"""Limit of armed windows that wait."""


class Arming(ArmedWindows):
    """The part of a profiler that accepts requests for windows, from any thread.

    A request costs the training thread nothing before its first step: it lowers the step at which the native counter calls
    `_transition`.
    """

    @property
    def stage(self) -> str:
        """The current stage, such as `fit`, from the metadata `stage`; empty if there is none.

        Callbacks of frameworks set it. A request may be for one stage (`WindowRequest.stage`).
        """
        return str(self._metadata.snapshot().get("stage", ""))

    def arm(self, request: WindowRequest, *, trigger: str = "call", gate: Gate | None = None) -> Armed:
        """Requests a window, in addition to those of the schedule. Any thread may call at any time; never waits.

        A request before `start()` is stored until then. A profiler without a schedule, which records everything, refuses;
        `trace(control=...)` makes a profiler that records requested windows only.

        Args:
            request: the window to record.
            trigger: origin of the request, in a word, for the window's metadata.
            gate: called once, on the stepping thread, when the window should begin. A returned text is the reason to refuse it.

        Returns:
            The steps that will be recorded, or the reason why none will.

        Raises:
            TypeError: if the request is no `WindowRequest`.
        """
        if not isinstance(request, WindowRequest):
            raise TypeError(
                f"request must be a stepscope.control.WindowRequest, {got(request)}; write "
                "arm(stepscope.control.WindowRequest(steps=...))"
            )
        run_id = request.run_id
        if self._state in ("closed", "inert"):
            return Armed(False, run_id=run_id, reason=f"profiler {self.name!r} is {self._state}")
        if not request.wants(self._rank):
            return Armed(False, run_id=run_id, reason=f"rank {self._rank or 0} is not among the ranks that record")
        if request.stage not in ("", self.stage):
            here = f"this is {self.stage!r}" if self.stage else "this profiler has none"
            return Armed(False, run_id=run_id, reason=f"it is for the stage {request.stage!r}, and {here}")
        if refused := self._never_arms():
            return Armed(False, run_id=run_id, reason=refused)
        if request.detail is not None and (refused := request.detail.refusal(self._backends)):
            return Armed(False, run_id=run_id, reason=refused)
        with self._arming:
            if len(self._armed) >= MAX_WAITING:
                return Armed(False, run_id=run_id, reason=f"{MAX_WAITING} windows wait already")
            spare = 0
            while True:
                ahead = self._first_free(self._step + (1 if self._live else 0) + spare)
                first, last, reason, nearest = place(request, ahead, self._armed, self.schedule)
                if first is None:
                    return Armed(False, run_id=run_id, reason=reason, nearest=nearest)
                window = ArmedWindow(request, trigger, first, last, gate)
                if reason:
                    window.note(reason)
                # The counter must know the change before the step begins; the training loop may be faster than this loop.
                self._next_change = min(self._next_change, max(window.begin, ahead))
                if not self._live or self._step < first:
                    break
                spare = 2 * spare + 1
            self._armed.append(window)
            self._armed.sort(key=lambda each: each.first)
            return self._answer(window)

    def note_missed(self, request: WindowRequest, reason: str, *, trigger: str = "call") -> None:
        """Registers a window that other ranks record, and for which this one is too late: `armed()` and `diagnostics()` show it as
        `missed`, and the metadata count it in `missed_windows`.

        Args:
            request: the window, with the number of its first step.
            reason: why it was missed.
            trigger: origin of the request.
        """
        window = ArmedWindow(request, trigger, *request.rounded(0))
        window.end("missed", reason)
        with self._arming:
            self._armed_past.append(window)
            self._missed += 1
            self._metadata.add("missed_windows", {"count": self._missed, "latest": reason})

    def _first_free(self, step: int) -> int:
        """The first step, from this one on, with which a window can begin."""
        return step

    def _never_arms(self) -> str:
        """Why this profiler refuses all windows; empty if it does not."""
        return ""

    def extend(self, steps: int = 0, *, seconds: float = 0.0) -> Armed:
        """Extends the running armed window.

        Args:
            steps: further steps, rounded up to the window's granularity; for a window of steps.
            seconds: further seconds; for a window of seconds.

        Returns:
            The steps of the window now, or why it is not extended.
        """
        if (
            isinstance(steps, bool)
            or not isinstance(steps, int)
            or not 0 <= steps <= MAX_STEP
            or not 0 <= seconds <= 86400
        ):
            return Armed(
                False, reason=f"extend takes a number of steps, or seconds up to 86400, got {steps!r} and {seconds!r}"
            )
        with self._arming:
            window = self._armed_running
            if window is None:
                return Armed(False, reason="no armed window runs")
            if bool(steps) == bool(seconds) or window.timed != bool(seconds):
                unit = "seconds" if window.timed else "steps"
                return Armed(
                    False, run_id=window.request.run_id, reason=f"the window is one of {unit}: say how many more"
                )
            if window.abort_reason is not None:
                return Armed(False, run_id=window.request.run_id, reason=f"it is aborted: {window.abort_reason}")
            group = window.request.granularity
            self._extend(window, window.last + -(-steps // group) * group, seconds)
            return self._answer(window)

    def abort(self, run_id: str | None = None, *, reason: str = "abort() was called") -> tuple[ArmedStatus, ...]:
        """Ends the running armed window with the current step, and withdraws waiting ones.

        Recorded steps are delivered as an incomplete window.

        Args:
            run_id: only windows of this run id; default: all.
            reason: text for diagnostics.

        Returns:
            The windows that this ends; empty if there are none.
        """
        ended: list[ArmedStatus] = []
        with self._arming:
            for window in list(self._armed):
                if run_id is not None and window.request.run_id != run_id:
                    continue
                if window is self._armed_running:
                    window.abort_reason = reason
                    window.last = min(window.last, max(self._step, window.first))
                else:
                    self._drop(window, "withdrawn", reason)
                ended.append(window.status())
            if ended:
                self._next_change = min(self._next_change, self._step + 1)
        return tuple(ended)

    def change_end(self, change: EndChange, *, gate: Gate | None = None) -> Armed:
        """Changes the ends of armed windows. Any thread may call; never waits.

        With a gate, nothing changes before the gate permits it. The gate is called once, on the stepping thread, at the first step
        at which the change matters, unless `confirm` or `withdraw` came before.

        Args:
            change: the change.
            gate: as for `arm`.

        Returns:
            The steps that the window will have, or why they cannot be changed.
        """
        with self._arming:
            if self._state in ("closed", "inert"):
                return Armed(False, reason=f"profiler {self.name!r} is {self._state}")
            answer = change.answer([window for window in self._armed if change.concerns(window)])
            if not answer:
                return answer
            self._next_change = min(self._next_change, change.decided_by)
            if self._live and self._step >= change.decided_by:
                late = f"too late: the loop is at step {self._step} already"
                return Armed(False, run_id=answer.run_id, reason=late, nearest=self._step + 1)
            if gate is None:
                self._apply_end(change)
            else:
                self._ends.append(PendingEnd(change, gate))
            return answer

    def confirm(self, gate: Gate) -> bool:
        """Applies the change of an end that waits with this gate. Returns whether there was one."""
        with self._arming:
            pending = next((each for each in self._ends if each.gate is gate), None)
            if pending is not None:
                self._ends.remove(pending)
                self._apply_end(pending.change)
            return pending is not None

    def withdraw(self, gate: Gate, reason: str) -> bool:
        """Withdraws the window, or the change of an end, that waits with this gate. Returns whether there was one."""
        with self._arming:
            for window in self._armed:
                if window.gate is gate and window is not self._armed_running:
                    self._drop(window, "withdrawn", reason)
                    return True
            for pending in self._ends:
                if pending.gate is gate:
                    self._ends.remove(pending)
                    return True
        return False

    def armed(self) -> tuple[ArmedStatus, ...]:
        """The armed windows: the latest ended ones, then the running one, then waiting ones."""
        with self._arming:
            return tuple(window.status() for window in (*self._armed_past, *self._armed))

    def _armed_notes(self) -> tuple[str, ...]:
        """Texts on windows that were not recorded as requested."""
        return tuple(
            f"armed window of {status.requested}: {status.state}: {status.reason}"
            for status in self.armed()
            if status.state in ("missed", "withdrawn", "aborted")
        )

    @staticmethod
    def _answer(window: ArmedWindow) -> Armed:
        status = window.status()
        return Armed(True, status.first, status.last, status.run_id, status.reason)

    def _step_was_set(self, by: int) -> None:
        """Waiting windows get new steps, counted from here. A running one retains its length."""
        with self._arming:
            waiting, self._armed = self._armed, []
            for window in waiting:
                if window is self._armed_running:
                    window.first = max(window.first + by, 0)
                    window.last = window.last if window.last == NEVER else window.last + by
                    self._armed.append(window)
                    continue
                if window.gate is not None:  # other ranks agreed on its steps
                    self._armed.append(window)
                    continue
                first, last, reason, _ = place(window.request, self._step, self._armed, self.schedule)
                self._armed.append(window)
                if first is None:
                    self._drop(window, "missed", reason)
                else:
                    window.first, window.last, window.reason = first, last, reason
            self._armed.sort(key=lambda each: each.first)

"""Arming: requests for windows while the program runs, from any thread, in addition to the profiler's schedule."""

from __future__ import annotations

from collections.abc import Callable

from stepscope.runtime.export.run import Metadata
from stepscope.runtime.requests.armed import Armed, ArmedStatus
from stepscope.runtime.requests.armed_window import ArmedWindow
from stepscope.runtime.requests.end_change import EndChange, EndRequest, choose_end
from stepscope.runtime.requests.placement import place
from stepscope.runtime.requests.window_request import MAX_STEP, WindowRequest
from stepscope.runtime.settings.arguments import got
from stepscope.runtime.steps.armed_windows import ArmedWindows

MAX_WAITING = 64
"""Limit of armed windows that wait, and of changes of ends that wait for a decision."""


class Arming:
    """Accepts requests for windows, from any thread. `Profiler` documents the methods.

    A request costs the training thread nothing before its first step: it lowers the step at which the native counter calls
    `StepController._transition`.
    """

    def __init__(
        self,
        windows: ArmedWindows,
        metadata: Metadata,
        *,
        rank: int | None,
        refusal: str = "",
        settings: Callable[[], object] = lambda: None,
    ) -> None:
        """
        Args:
            metadata: has the stage, and gets the number of missed windows.
            refusal: why this profiler refuses all windows; empty if it does not.
            settings: called for each request, without the lock; its result is kept as `ArmedWindow.settings`.
        """
        self.name = windows.name
        self._windows, self._steps = windows, windows.steps
        self._metadata = metadata
        self._rank = rank
        self._refusal = refusal
        self._settings = settings
        self._missed = 0
        """Windows of other ranks for which this one was too late."""

    @property
    def step_num(self) -> int:
        return self._steps.number

    @property
    def stage(self) -> str:
        """The metadata `stage`; empty if there is none."""
        return str(self._metadata.snapshot().get("stage", ""))

    def arm(self, request: WindowRequest, *, trigger: str = "call", plan: str = "", proposed: bool = False) -> Armed:
        """Adds a window that waits, or says why not.

        Args:
            plan: a name for `withdraw` and `decide`. Steps of a window with a plan are fixed.
            proposed: record it only if `decide` commits it before its first step.
        """
        if not isinstance(request, WindowRequest):
            raise TypeError(
                f"request must be a stepscope.control.WindowRequest, {got(request)}; write "
                "arm(stepscope.control.WindowRequest(steps=...))"
            )
        windows, steps, run_id = self._windows, self._steps, request.run_id
        if refused := self._refused(request):
            return Armed(False, run_id=run_id, reason=refused)
        settings = self._settings()
        with windows.lock:
            if len(windows.open) >= MAX_WAITING:
                return Armed(False, run_id=run_id, reason=f"{MAX_WAITING} windows wait already")
            spare = 0
            while True:
                ahead = steps.number + (1 if steps.live else 0) + spare
                first, last, reason, nearest = place(request, ahead, windows.open, steps.schedule)
                if first is None:
                    return Armed(False, run_id=run_id, reason=reason, nearest=nearest)
                window = ArmedWindow(request, trigger, first, last)
                window.settings, window.plan, window.proposed = settings, plan, proposed
                if reason:
                    window.note(reason)
                # The counter must know the change before the step begins; the training loop may be faster than this loop.
                windows.change_at(max(window.begin, ahead))
                if not steps.live or steps.number < first:
                    break
                spare = 2 * spare + 1
            windows.add(window)
            status = window.status()
            return Armed(True, status.first, status.last, status.run_id, status.reason)

    def _refused(self, request: WindowRequest) -> str:
        if self._steps.state in ("closed", "inert"):
            return f"profiler {self.name!r} is {self._steps.state}"
        if not request.wants(self._rank):
            return f"rank {self._rank or 0} is not among the ranks that record"
        if request.stage not in ("", self.stage):
            here = f"this is {self.stage!r}" if self.stage else "this profiler has none"
            return f"it is for the stage {request.stage!r}, and {here}"
        if self._refusal or request.detail is None:
            return self._refusal
        return request.detail.refusal(self._windows.backends)

    def note_missed(self, request: WindowRequest, reason: str, *, trigger: str = "call") -> None:
        """Adds a window that other ranks record to the past ones."""
        window = ArmedWindow(request, trigger, *request.rounded(0))
        window.end("missed", reason)
        with self._windows.lock:
            self._windows.past.append(window)
            self._missed += 1
            self._metadata.add("missed_windows", {"count": self._missed, "latest": reason})

    def extend(self, steps: int = 0, *, seconds: float = 0.0, stop_step: int = 0) -> Armed:
        """Extends the running window by steps or seconds, or to a step."""
        whole = isinstance(steps, int) and not isinstance(steps, bool)
        if not (whole and 0 <= steps <= MAX_STEP and 0 <= seconds <= 86400):
            reason = f"extend takes a number of steps, or seconds up to 86400, got {steps!r} and {seconds!r}"
            return Armed(False, reason=reason)
        request = EndRequest(command="extend", steps=steps, seconds=seconds, stop_step=stop_step)
        with self._windows.lock:
            change, _, reason = choose_end(request, {0: self.armed()}, 0)
            return Armed(False, reason=reason) if change is None else self.change_end(change)

    def abort(self, run_id: str | None = None, *, reason: str = "abort() was called") -> tuple[ArmedStatus, ...]:
        """Ends the running window with the current step, and withdraws waiting ones. Returns these windows."""
        windows, step = self._windows, self._steps.number
        with windows.lock:
            ended = [window for window in windows.open if run_id in (None, window.request.run_id)]
            for window in ended:
                if window is windows.running:
                    window.abort_reason = reason
                    window.last = min(window.last, max(step, window.first))
                    windows.change_at(window.last + 1)
                else:
                    windows.drop(window, "withdrawn", reason)
            return tuple(window.status() for window in ended)

    def change_end(self, change: EndChange, *, proposal: str = "") -> Armed:
        """Applies a change of ends. Args: the change; a name if it is to wait for `decide`."""
        windows, steps = self._windows, self._steps
        with windows.lock:
            if steps.state in ("closed", "inert"):
                return Armed(False, reason=f"profiler {self.name!r} is {steps.state}")
            if proposal and len(windows.ends) >= MAX_WAITING:
                return Armed(False, reason=f"{MAX_WAITING} changes wait for a decision already")
            answer = change.answer([window for window in windows.open if change.concerns(window)])
            if not answer:
                return answer
            windows.change_at(change.decided_by)
            if steps.live and steps.number >= change.decided_by:
                late = f"too late: the loop is at step {steps.number} already"
                return Armed(False, run_id=answer.run_id, reason=late, nearest=steps.number + 1)
            if proposal:
                windows.ends[proposal] = change
            else:
                windows.apply_end(change)
            return answer

    def decide(self, plan: str, *, committed: bool, reason: str = "") -> bool:
        """Lets proposed windows of this plan begin, and applies its change of an end; or withdraws them, for the reason. Returns
        whether anything waited for the decision."""
        windows = self._windows
        with windows.lock:
            proposed = [window for window in windows.waiting if window.plan == plan and window.proposed]
            for window in proposed:
                if committed:
                    window.proposed = False
                else:
                    windows.drop(window, "withdrawn", reason)
            change = windows.ends.pop(plan, None)
            if change is not None and committed:
                windows.apply_end(change)
            return bool(proposed) or change is not None

    def withdraw(self, plan: str, reason: str) -> tuple[ArmedWindow, ...]:
        """Withdraws the windows of this plan that have not begun. Returns them."""
        windows = self._windows
        with windows.lock:
            found = tuple(window for window in windows.waiting if window.plan == plan)
            for window in found:
                windows.drop(window, "withdrawn", reason)
        return found

    def armed(self) -> tuple[ArmedStatus, ...]:
        """Ended windows, then the running one, then waiting ones."""
        with self._windows.lock:
            return tuple(window.status() for window in (*self._windows.past, *self._windows.open))

    def notes(self) -> tuple[str, ...]:
        """Texts on windows that were not recorded as requested."""
        return tuple(
            f"armed window of {status.requested}: {status.state}: {status.reason}"
            for status in self.armed()
            if status.state in ("missed", "withdrawn", "aborted")
        )

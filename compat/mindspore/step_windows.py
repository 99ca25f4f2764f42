"""When windows that a file asks for begin and end, in a loop whose steps count from 1."""

from __future__ import annotations

import hashlib
import re
import weakref
from collections import deque
from collections.abc import Callable

import msgspec

from stepscope.compat.mindspore.asked_steps import Asked, Ended, Key, Late, Planned
from stepscope.runtime.export.metadata import Metadata
from stepscope.runtime.requests.armed import Armed, ArmedStatus
from stepscope.runtime.requests.armed_window import ArmedWindow, Gate
from stepscope.runtime.requests.end_change import EndChange
from stepscope.runtime.requests.window_request import MAX_RUN_ID, WindowRequest
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.schedule.schedule import NEVER, ScheduleFunction, never
from stepscope.runtime.steps.armed_schedule import ArmedSchedule
from stepscope.runtime.steps.armed_windows import ArmedWindows
from stepscope.runtime.steps.arming import Arming


class StepWindows(Arming):
    """Follows the steps of one rank: windows are armed and placed as those of a profiler, which begins for each of them.

    A window is recorded once; the same steps again need another `run_id`. What cannot be followed is said once for each
    configuration, in `take_complaints`. Edits do not touch a window that runs, unless a `command` says so.

    Where rank 0 plans, windows and changes of their ends come by `arm` and `change_end`, from any thread, and there is no
    configuration to follow here.

    Args:
        late: what becomes of a window whose first step has passed: nothing, or the rest of it is recorded.
        granularity: steps that can only be recorded together, as where data are sunk to the device; windows are
            widened to whole groups.
        rank: of this process.
        agreed: whether rank 0 plans for all ranks; then a step that has begun cannot be the first any more.
    """

    def __init__(self, late: Late = "refuse", granularity: int = 1, *, rank: int = 0, agreed: bool = False) -> None:
        self.number, self.next_change, self.live = 0, NEVER, agreed
        self.state = "running"
        self.schedule: ScheduleFunction = never
        windows = ArmedWindows("dynamic profiler", self)
        super().__init__(windows, (), Metadata(), rank=rank, first_free=lambda step: self._up(step - 1) + 1)
        self._armed = ArmedSchedule(windows, ())
        self.running: Planned | None = None
        self.configuration: Callable[[], object] = lambda: None
        """Asked for what the file says when a window is armed."""
        self._late: Late = late
        self._group = granularity
        self._seen: Asked | None = None
        self._handled: Key | None = None
        self._waiting: Key | None = None
        self._placed: Key | None = None
        """The window that was armed and has yet to begin."""
        self._postponed = False
        """Whether the configuration is to be looked at again when no window runs."""
        self._configurations: weakref.WeakKeyDictionary[ArmedWindow, object] = weakref.WeakKeyDictionary()
        self._complaints: deque[str] = deque()

    @property
    def complains(self) -> bool:
        """True if there is something that could not be followed."""
        return bool(self._complaints)

    def complain(self, text: str) -> None:
        """Adds to what could not be followed; from any thread."""
        self._complaints.append(text)

    def take_complaints(self) -> list[str]:
        """Requests that could not be followed since the last call, one sentence for each."""
        said: list[str] = []
        while self._complaints:
            said.append(self._complaints.popleft())
        return said

    def request(self, asked: Asked) -> WindowRequest:
        """The window that is asked for, of whole groups.

        Raises:
            ValueError: if no window can be like that.
        """
        if problem := asked.problem():
            raise ValueError(problem)
        if asked.start == "next":
            return WindowRequest(
                steps=self._up(asked.steps), run_id=_run_id(asked), ranks=asked.ranks, past=self._late, overlap="queue"
            )
        return WindowRequest(
            start_step=self._down(asked.start),
            stop_step=self._up(asked.last),
            run_id=_run_id(asked),
            ranks=asked.ranks,
            past=self._late,
        )

    # where steps begin and end

    def before(self, asked: Asked | None, step: int) -> Planned | None:
        """A step begins, or a group of them, of which this is the first.

        Args:
            asked: what the file says, the same object as long as it says the same; `None` where rank 0 plans.
            step: its number.

        Returns:
            The window that has to begin with it, if one has.
        """
        self.number = step
        if asked is self._seen and step < self.next_change and not (self._postponed and self.running is None):
            return None
        windows = self._windows
        with windows.lock:
            if asked is not None:
                self._seen = asked
                self._follow_file(asked, step)
            running = windows.running
            waiting = {window: window.first for window in windows.waiting}
            self.next_change = NEVER
            self._armed.end_before(step, self._current)
            self._armed.action(step, ProfilerAction.NONE, self._current)
            for each, first in waiting.items():
                if each.state == "missed":
                    self._handled, self._placed = self._placed or self._handled, None
                    self.complain(f"{_late(first, step)}: nothing is recorded{self._nearest(step)}")
            window = windows.running
            if window is None or window is running:
                return None
            if window.first > waiting[window]:
                self.complain(f"{_late(waiting[window], step)}: steps {window.first} to {window.last} are recorded")
            if asked is None:
                asked = Asked(waiting[window], window.last, window.request.run_id)
            else:
                self._handled, self._placed = asked.key, None
            self.running = Planned(window.first, window.last, asked, self._configurations.pop(window, None))
            return self.running

    def after(self, asked: Asked | None, step: int) -> Ended | None:
        """A step has ended.

        Returns:
            The window that has to end with it, if one has.
        """
        window = self._windows.running
        if window is None:
            return None
        self.number = step
        with self._windows.lock:
            if asked is not None and asked.command:
                self._obey(asked, window, step)
            self._armed.end_before(step + 1, ProfilerAction.RECORD)
            if self._windows.running is window:
                return None
            self.running = None
            return Ended(window.first, window.last, (window.abort_reason or "") if window.state == "aborted" else "")

    def end(self, step: int, reason: str = "") -> Ended | None:
        """Ends the window that runs, whatever was asked for; `step` is the last one that was recorded."""
        windows = self._windows
        with windows.lock:
            window, windows.running, self.running = windows.running, None, None
            if window is None:
                return None
            window.last = max(step, window.first)
            windows.drop(window, "cut" if reason else "recorded", reason)
            return Ended(window.first, window.last, reason)

    # what the file says

    def _follow_file(self, asked: Asked, step: int) -> None:
        self._postponed = False
        if asked.command:
            self._withdraw_placed()
            if self._windows.running is None and asked.key not in (self._handled, self._waiting):
                self._waiting = asked.key
                self.complain(f"command {asked.command!r} changes nothing: no window runs")
            return
        if asked.key == self._placed:
            return
        self._withdraw_placed()
        if asked.is_nothing or asked.key == self._handled:
            return
        running = self._windows.running
        if running is not None:
            self._postponed = True
            if self._waiting != asked.key:
                self._waiting = asked.key
                self.complain(
                    f"{asked.text()} wait: a window runs until step {running.last} "
                    '("command": "extend" or "abort" changes that)'
                )
            return
        if asked.ranks is not None and self._rank not in asked.ranks:
            self._handled = asked.key
        elif problem := self._place(asked, step):
            self._handled = asked.key
            self.complain(problem)

    def _place(self, asked: Asked, step: int) -> str:
        """Arms the window that is asked for; returns why it cannot be."""
        try:
            request = self.request(asked)
        except ValueError as error:
            return str(error)
        armed = self.arm(request, trigger="file")
        past = request.start_step != "next" and request.start_step < self._first_free(step)
        if armed:
            self._placed = asked.key
            if past:
                late = _late(asked.start, armed.first or step)
                self.complain(f"{late}: steps {armed.first} to {armed.last} are recorded")
            return ""
        if not past:
            return armed.reason
        passed = f", and stop_step {asked.last} has passed" if self._late == "clip" else ""
        return f"{_late(asked.start, step)}{passed}: nothing is recorded{self._nearest(step)}"

    def _withdraw_placed(self) -> None:
        """The window that has yet to begin is not asked for any more."""
        self._placed = None
        for window in self._windows.waiting:
            self._windows.drop(window, "withdrawn", "the file asks for something else")

    def _obey(self, asked: Asked, window: ArmedWindow, step: int) -> None:
        if asked.command == "abort":
            self._handled = asked.key
            self.abort(reason="it was aborted")
            return
        assert self.running is not None
        if asked.start not in (-1, self.running.asked.start) or asked.key == self._handled:
            return
        self._handled = asked.key
        last = window.last + self._up(asked.steps) if asked.steps else self._up(asked.last)
        problem = "" if asked.steps or asked.start == -1 < asked.stop else asked.problem()
        if problem or last < step:
            problem = problem or "stop_step has passed"
            self.complain(f"the window cannot be extended to step {asked.last}: {problem}")
            return
        self.change_end(EndChange(command="extend", first=window.first, until=window.last, last=last))

    # whole groups of steps, of which the first begins with step 1

    def arm(self, request: WindowRequest, *, trigger: str = "call", gate: Gate | None = None) -> Armed:
        """Has a window recorded; see `Profiler.arm`. Its steps are rounded up to whole groups: the same on all ranks."""
        if request.start_step != "next" and request.stop_step is not None and self._group > 1:
            first, last = self._first_free(request.start_step), self._up(request.stop_step)
            if first > last:
                return Armed(
                    False, run_id=request.run_id, reason=f"no group of {self._group} steps is left of the window"
                )
            request = msgspec.structs.replace(request, start_step=first, stop_step=last)
        configuration = self.configuration()
        armed = super().arm(request, trigger=trigger, gate=gate)
        with self._windows.lock:
            for window in self._windows.open:
                if window.request is request:
                    self._configurations[window] = configuration
        if armed:
            return armed
        # There is no such choice in the file: what overlaps waits if it may.
        return msgspec.structs.replace(armed, reason=armed.reason.partition("; ask with overlap")[0])

    def change_end(self, change: EndChange, *, gate: Gate | None = None) -> Armed:
        """Has windows end with another step, the last of a group; see `Profiler.change_end`."""
        return super().change_end(msgspec.structs.replace(change, last=self._up(change.last)), gate=gate)

    def armed(self) -> tuple[ArmedStatus, ...]:
        """The windows that were armed; see `Profiler.armed`."""
        found = super().armed()
        if self._group == 1:
            return found
        return tuple(msgspec.structs.replace(each, granularity=self._group) for each in found)

    def meant(self, asked: Asked) -> ArmedStatus | None:
        """The window that runs or waits and was asked for with this start."""
        for each in self.armed():
            if each.open and each.first is not None:
                if asked.start in ("next", -1) or each.first == self._down(int(asked.start)):
                    return each
                if self._late == "clip" and int(asked.start) < each.first:
                    return each
        return None

    @property
    def _current(self) -> ProfilerAction:
        return ProfilerAction.NONE if self._windows.running is None else ProfilerAction.RECORD

    def _nearest(self, step: int) -> str:
        return f"; the nearest start_step that can be followed is {self._up(step) + 1}"

    def _down(self, step: int) -> int:
        """First step of the group that has this one."""
        return (step - 1) // self._group * self._group + 1

    def _up(self, step: int) -> int:
        """Last step of the group that has this one."""
        return -(-step // self._group) * self._group


def _run_id(asked: Asked) -> str:
    """Any text as one that names of windows may have."""
    fit = re.sub(r"[^A-Za-z0-9._@:+-]", "-", asked.run_id)[:MAX_RUN_ID]
    if fit == asked.run_id:
        return fit
    return f"{fit[: MAX_RUN_ID - 9]}-{hashlib.sha256(asked.run_id.encode(errors='replace')).hexdigest()[:8]}"


def _late(start: int | str, step: int) -> str:
    return f"start_step {start} is in the past, step {step} begins"

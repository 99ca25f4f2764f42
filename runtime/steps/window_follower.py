"""Follows requests for windows in a loop that something else records: says when each begins and ends."""

from __future__ import annotations

import logging
from collections.abc import Callable

from stepscope.runtime.export.run import Metadata
from stepscope.runtime.requests.armed_window import ArmedWindow
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.schedule.schedule import NEVER, ScheduleFunction, never
from stepscope.runtime.steps.armed_windows import ArmedWindows
from stepscope.runtime.steps.arming import Arming

log = logging.getLogger("stepscope")


class WindowFollower:
    """The armed windows of a loop that calls `begin` and `end` for each step, or for each group of steps.

    Requests come by `arming`, from any thread, as those of a profiler do. It records nothing itself, and needs no session.
    """

    def __init__(
        self, name: str, *, rank: int | None, step: int = 0, settings: Callable[[], object] = lambda: None
    ) -> None:
        """Args: as for `Arming`; `step` is the number of the step that goes on: a window can begin with the next one."""
        self.number, self.next_change, self.live = step, NEVER, True
        self.state = "running"
        self.schedule: ScheduleFunction = never
        self._windows = ArmedWindows(name, self, (), title=name)
        self.arming = Arming(self._windows, Metadata(), rank=rank, settings=settings)
        """Takes requests."""

    @property
    def running(self) -> ArmedWindow | None:
        return self._windows.running

    def begin(self, step: int) -> ArmedWindow | None:
        """A step begins, or a group of them, of which this is the first. Returns the window that begins with it."""
        self.number = step
        if step < self.next_change:
            return None
        with self._windows.lock:
            before, waiting = self._windows.running, self._windows.waiting
            self.next_change = NEVER
            if before is None:
                self._windows.end_before(step, ProfilerAction.NONE)  # windows that wait may have been withdrawn
            self._windows.action(step, ProfilerAction.NONE, _action(before))
            for each in waiting:
                if each.state == "missed":
                    log.warning("%s: %s: missed: %s", self._windows.name, each.request.text(), each.reason)
            running = self._windows.running
            return None if running is before else running

    def end(self, step: int) -> ArmedWindow | None:
        """A step has ended, or a group of them, of which this is the last. Returns the window that ends with it."""
        window = self._windows.running
        if window is None:
            return None
        with self._windows.lock:
            ended = self._windows.end_before(step + 1, ProfilerAction.RECORD)
            if ended is None:
                self.number = step + 1  # it belongs to the window already
            return ended

    def cut(self, step: int, reason: str) -> ArmedWindow | None:
        """Ends the window that runs, whose last step is this one. Returns it, if there is one."""
        window = self._windows.running
        self._windows.cut(step + 1, reason, alone=False, recorded=False)
        return window


def _action(window: ArmedWindow | None) -> ProfilerAction:
    return ProfilerAction.NONE if window is None else ProfilerAction.RECORD

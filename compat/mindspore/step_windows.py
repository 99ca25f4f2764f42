"""When windows that a file asks for begin and end: a state machine without clock, file or thread."""

from __future__ import annotations

from typing import Literal

import msgspec

Late = Literal["refuse", "clip"]


class Asked(msgspec.Struct, frozen=True):
    """What a configuration says of steps; 1 is the first."""

    start: int
    stop: int
    run_id: str = ""
    """Tells it from another one of the same steps."""
    command: str = ""
    """For the window that runs: `extend`, `abort` or nothing."""

    @property
    def key(self) -> tuple[int, int, str]:
        """What makes it another window."""
        return self.start, self.stop, self.run_id


class Planned(msgspec.Struct, frozen=True):
    """A window that runs, or has to begin now."""

    first: int
    """Its first step: what is recorded, not what was asked for."""
    last: int
    asked: Asked


class Ended(msgspec.Struct, frozen=True):
    """A window that has to end now."""

    first: int
    last: int
    """The last step that was recorded."""
    reason: str = ""
    """Why it is shorter than it was asked for; empty if it is not."""


class StepWindows:
    """Follows the steps of one rank.

    A window is recorded once; the same steps again need another `run_id`. What cannot be followed is said once for each
    configuration, in `take_complaints`. Edits do not touch a window that runs, unless a `command` says so.

    Args:
        late: what becomes of a window whose first step has passed: nothing, or the rest of it is recorded.
        granularity: steps that can only be recorded together, as where data are sunk to the device; windows are
            widened to whole groups.
    """

    def __init__(self, late: Late = "refuse", granularity: int = 1) -> None:
        self.running: Planned | None = None
        self._late, self._group = late, granularity
        self._handled: tuple[int, int, str] | None = None
        self._waiting: tuple[int, int, str] | None = None
        self._complaints: list[str] = []

    def take_complaints(self) -> list[str]:
        """What could not be followed since the last call, one sentence for each."""
        said, self._complaints = self._complaints, []
        return said

    def before(self, asked: Asked, step: int) -> Planned | None:
        """A step begins, or a group of them, of which this is the first.

        Returns:
            The window that has to begin with it, if one has.
        """
        if asked.command and self.running is None and asked.key not in (self._handled, self._waiting):
            self._waiting = asked.key
            self._complaints.append(f"command {asked.command!r} changes nothing: no window runs")
        if asked.start == -1 or asked.stop == -1 or asked.key == self._handled or asked.command:
            return None
        if self.running is not None:
            if self._waiting != asked.key:
                self._waiting = asked.key
                self._complaints.append(
                    f"steps {asked.start} to {asked.stop} wait: a window runs until step {self.running.last} "
                    '("command": "extend" or "abort" changes that)'
                )
            return None
        problem = self._problem(asked)
        if problem:
            self._refuse(asked, problem)
            return None
        first, last = self._down(asked.start), self._up(asked.stop)
        if step < first:
            return None
        if step > first:
            late = f"start_step {asked.start} is in the past, step {step} begins"
            if self._late == "refuse":
                self._refuse(asked, f"{late}: nothing is recorded; {self._nearest(step)}")
                return None
            if last < step:
                self._refuse(
                    asked, f"{late}, and stop_step {asked.stop} has passed: nothing is recorded; {self._nearest(step)}"
                )
                return None
            if self._down(step) != step:
                return None  # the next group is the first that can be recorded whole
            self._complaints.append(f"{late}: steps {step} to {last} are recorded")
        self._handled = asked.key
        self.running = Planned(step, last, asked)
        return self.running

    def after(self, asked: Asked, step: int) -> Ended | None:
        """A step has ended.

        Returns:
            The window that has to end with it, if one has.
        """
        running = self.running
        if running is None:
            return None
        if asked.command == "extend" and asked.start == running.asked.start and asked.key != self._handled:
            problem = self._problem(asked) or ("" if self._up(asked.stop) >= step else "stop_step has passed")
            self._handled = asked.key
            if problem:
                self._complaints.append(f"the window cannot be extended to step {asked.stop}: {problem}")
            else:
                running = self.running = Planned(running.first, self._up(asked.stop), running.asked)
        if asked.command == "abort":
            self._handled = asked.key
            return self.end(step, "it was aborted")
        return self.end(step) if step >= running.last else None

    def end(self, step: int, reason: str = "") -> Ended | None:
        """Ends the window that runs, whatever was asked for; `step` is the last one that was recorded."""
        running, self.running = self.running, None
        return None if running is None else Ended(running.first, max(step, running.first), reason)

    def _problem(self, asked: Asked) -> str:
        if asked.start < 1 or asked.stop < 1:
            return f"start_step {asked.start} and stop_step {asked.stop} must be 1 or more, or -1 for no window"
        if asked.start > asked.stop:
            return f"start_step {asked.start} is greater than stop_step {asked.stop}"
        return ""

    def _refuse(self, asked: Asked, problem: str) -> None:
        self._handled = asked.key
        self._complaints.append(problem)

    def _nearest(self, step: int) -> str:
        return f"the nearest start_step that can be followed is {self._up(step) + 1}"

    def _down(self, step: int) -> int:
        """First step of the group that has this one."""
        return (step - 1) // self._group * self._group + 1

    def _up(self, step: int) -> int:
        """Last step of the group that has this one."""
        return -(-step // self._group) * self._group

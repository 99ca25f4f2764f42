"""The steps of a requested window: on one rank, next to the schedule's windows and other armed ones; and the same on all ranks.

Pure functions over step numbers: no clock, no thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from stepscope.runtime.requests.armed_window import ArmedWindow
from stepscope.runtime.requests.window_request import MAX_STEP, WindowRequest
from stepscope.runtime.schedule.action import ProfilerAction, step_text
from stepscope.runtime.schedule.schedule import NEVER, PlannedSchedule, ScheduleFunction, always

MAX_CHANGES = 1000
"""Limit of collisions; a window that still collides after so many is refused."""

ASK_TO_WAIT = "ask with overlap='queue' to wait"
ASK_LATER = "nobody knows the step with which that ends; ask again when it is over"


class Placement(NamedTuple):
    """The steps of a window; without a first step it is refused."""

    first: int | None
    last: int = NEVER
    reason: str = ""
    nearest: int | None = None
    """If it is refused: the first step with which it would be accepted."""


class _Occupied(NamedTuple):
    first: int
    last: int
    what: str


def place(request: WindowRequest, ahead: int, armed: Sequence[ArmedWindow], schedule: ScheduleFunction) -> Placement:
    """Finds the steps of a window, and how they differ from the request; or the reason of a refusal.

    Args:
        ahead: the first step that can still be recorded.
        armed: running and queued windows.
        schedule: of the profiler. It is ignored if it is no `PlannedSchedule`.
    """
    if schedule is always:
        return Placement(None, reason="the profiler records every step; give it a schedule, or control=...")
    first, last = request.rounded(ahead)
    notes: list[str] = []
    if first < ahead:
        clipped = request.group_from(ahead)
        if request.past == "refuse":
            return Placement(None, reason=_past(request, first, ahead), nearest=clipped)
        if clipped > last:
            return Placement(None, reason=f"{_past(request, first, ahead)}; nothing of the window is left")
        notes.append(f"clipped: the loop is at step {ahead - 1} already, step {first} is past")
        first = clipped
    if request.granularity > 1 and request.start_step not in ("next", first):
        notes.append(f"rounded to groups of {request.granularity} steps")
    what = ""
    for _ in range(MAX_CHANGES):
        occupied = _collision(first, last, armed, schedule)
        if occupied is None:
            return Placement(first, last, "; ".join(notes))
        what = occupied.what
        overlap = f"{_steps(first, last)} overlap {occupied.what}"
        if occupied.last == NEVER:
            return Placement(None, reason=f"{overlap}; {ASK_LATER}")
        moved = request.group_from(occupied.last + 1)
        if request.overlap == "refuse":
            return Placement(None, reason=f"{overlap}; {ASK_TO_WAIT}", nearest=moved)
        note = f"queued behind {occupied.what}"
        if note not in notes:
            notes.append(note)
        first, last = moved, NEVER if last == NEVER else last + moved - first
    return Placement(None, reason=f"{_steps(first, last)} overlap {what}, and so do all later ones")


def _past(request: WindowRequest, first: int, ahead: int) -> str:
    name = "start_step" if first == request.start_step else f"start_step (rounded to groups of {request.granularity})"
    nearest = request.group_from(ahead)
    return (
        f"{name} {first} is in the past: the loop is at step {ahead - 1}; the nearest that can be recorded is {nearest}"
    )


def _steps(first: int, last: int) -> str:
    return f"the steps from {first} on" if last == NEVER else step_text(first, last)


def _collision(first: int, last: int, armed: Sequence[ArmedWindow], schedule: ScheduleFunction) -> _Occupied | None:
    for window in armed:
        if window.first <= last and first <= window.last:
            name = f" {window.request.run_id!r}" if window.request.run_id else ""
            what = f"the window{name} of {_steps(window.first, window.last)}"
            return _Occupied(window.first, window.last, what)
    if not isinstance(schedule, PlannedSchedule):
        return None
    # A window that ends by the clock has priority over windows of the schedule that begin meanwhile.
    return _of_schedule(first, first if last == NEVER else last, schedule)


def _of_schedule(first: int, last: int, schedule: PlannedSchedule) -> _Occupied | None:
    """The first window of the schedule with a step from `first` to `last`."""
    step = first
    for _ in range(MAX_CHANGES):
        if step > last or step == NEVER:
            return None
        if schedule(step).records:
            begun, end = step, step
            while end < NEVER and schedule(end) is ProfilerAction.RECORD:
                end = schedule.next_change(end)
            return _Occupied(begun, end, f"the schedule's window with step {begun}")
        step = schedule.next_change(step)
    return None


class ChosenSteps(NamedTuple):
    """The request with numbers for its steps; or `None` and the reason."""

    request: WindowRequest | None
    reason: str = ""


def choose_steps(request: WindowRequest, ahead: int, least: int, too_near: int, latest: str) -> ChosenSteps:
    """Chooses the steps of a window.

    Args:
        request: the request.
        ahead: the first step that all ranks can reach in time after they have agreed on it.
        least: lower bound from a previous attempt; 0: this is the first attempt.
        too_near: the ranks cannot agree on a fixed step before this one.
        latest: position of the furthest rank, for messages.
    """
    floor = max(ahead, least)
    first, last = request.rounded(floor)
    waits = request.overlap == "queue" and least > 0
    earliest = ahead if waits else floor
    if first < earliest and (request.past == "clip" or (first < too_near and not waits)):
        where = f"start_step {first} is past, or too near: {latest}"
        if request.past == "refuse":
            return ChosenSteps(None, f"{where}; the nearest that all ranks can record is {floor}")
        first = request.group_from(earliest)
        if first > last:
            return ChosenSteps(None, f"{where}; nothing of the window is left that all ranks can record")
    if waits and first < floor:
        moved = request.group_from(floor)
        first, last = moved, NEVER if last == NEVER else last + moved - first
    beyond = first if last == NEVER else max(first, last)
    if beyond > MAX_STEP:
        return ChosenSteps(
            None,
            f"it would come to step {beyond:,}, and {MAX_STEP:,} is the last number that a step can have; {latest}",
        )
    stop = None if last == NEVER else last
    chosen = msgspec.structs.replace(
        request, start_step=first, steps=None, stop_step=stop, ranks=None, past="refuse", overlap="refuse"
    )
    return ChosenSteps(chosen)


def allows_later_steps(request: WindowRequest) -> bool:
    """Whether the request allows later steps."""
    return request.start_step == "next" or request.past == "clip" or request.overlap == "queue"


def nearest_of(request: WindowRequest | None, by: int, step: int, nearest: int | None) -> int | None:
    """Returns the first step for another attempt after a rank at this step refused; `None` if another attempt is pointless.

    Args:
        request: `None` for another end of a window.
        by: the step before which the decision was needed.
        nearest: the first step after a colliding window, according to the rank.
    """
    if step >= by:
        return step + 1
    return nearest if request is not None and request.overlap == "queue" else None

"""Chooses the steps of a window for several ranks, so that no rank is past them."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from stepscope.runtime.requests.window_request import MAX_STEP, WindowRequest
from stepscope.runtime.schedule.schedule import NEVER


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
    """Returns the first step for another attempt after a rank refused; `None` if another attempt is pointless.

    Args:
        request: the request; `None` for another end of a window.
        by: the step before which the decision was needed.
        step: current step of the rank.
        nearest: the first step after a colliding window, according to the rank.
    """
    if step >= by:
        return step + 1
    return nearest if request is not None and request.overlap == "queue" else None

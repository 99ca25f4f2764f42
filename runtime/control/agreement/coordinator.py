"""The coordinator, rank 0: chooses the steps of each window, and how windows end, and publishes each decision once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import msgspec

from stepscope.runtime.control.agreement.participant import PlannedGate
from stepscope.runtime.control.agreement.plans import Plan, Plans, Request
from stepscope.runtime.control.agreement.rate import Pace
from stepscope.runtime.control.agreement.step_choice import allows_later_steps, choose_steps, nearest_of, refusal_reason
from stepscope.runtime.requests.armable import Armable
from stepscope.runtime.requests.armed import Armed
from stepscope.runtime.requests.end_change import EndChange, EndRequest, choose_end
from stepscope.runtime.requests.window_request import MAX_STEP, WindowRequest
from stepscope.runtime.session.ranks import ranks_text

ATTEMPTS = 8
"""Choices of steps for one request: each after the window that collided with the previous one."""
LEAST_STEPS = 2
"""Minimum number of steps between rank 0's step and the first chosen one."""


class Coordinator:
    """Arms the windows of rank 0, and publishes them as plans."""

    def __init__(
        self,
        plans: Plans,
        profiler: Armable,
        world_size: int,
        margin: float,
        patience: float,
        concluded: Callable[[Plan, Armed], object],
    ) -> None:
        """
        Args:
            plans: files of the plans.
            profiler: of rank 0.
            world_size: number of ranks.
            margin: seconds from the choice of a step to this step, at least.
            patience: seconds that `next` waits for all ranks to join.
            concluded: called with each plan and rank 0's answer, and again when other ranks report that they cannot follow.
        """
        self._plans, self._profiler, self._world_size = plans, profiler, world_size
        self._margin, self._concluded = margin, concluded
        self._pace = Pace(margin)
        self._waits_until = time.monotonic() + patience
        """Until then, `next` waits for ranks that have not joined; 0 when all have."""
        self._latest: tuple[Plan, Armed] | None = None
        self._unable = 0
        """Number of ranks that cannot follow the latest plan."""
        self._ends: set[str] = set()
        """Keys of changes since the latest window: a repetition has no effect."""

    def turn(self) -> None:
        """Measures the loop's pace, and reads reports of ranks that cannot follow the latest plan.

        Raises:
            OSError: if the directory cannot be used.
        """
        self._pace.add(time.monotonic(), self._profiler.step_num)
        if self._latest is None:
            return
        plan, armed = self._latest
        unable = self._plans.unable(plan.number)
        if len(unable) > self._unable:
            self._unable = len(unable)
            ranks = ranks_text([each.rank for each in unable])
            note = f"not on rank{'s' * (len(unable) > 1)} {ranks}: {unable[0].reason}"
            reason = f"{armed.reason}; {note}" if armed.reason else note
            self._concluded(plan, msgspec.structs.replace(armed, reason=reason))

    def decide(self, key: str, request: Request) -> bool:
        """Decides on a request, and publishes the plan.

        Returns:
            Whether it has decided. If not, the loop's pace is unknown, or a rank has not joined: call again later.

        Raises:
            OSError: if the plan cannot be written. Then nothing is recorded or changed.
        """
        gate, payload = PlannedGate(), request.payload
        window: WindowRequest | None = None
        change: EndChange | None = None
        if isinstance(payload, WindowRequest):
            if request.trigger == "signal" and any(
                each.open and each.trigger == "signal" for each in self._profiler.armed()
            ):
                return True
            if payload.start_step == "next" and not (self._pace.is_measured and self._all_joined()):
                return False
            window, armed = self._choose(payload, request.trigger, gate)
        elif key in self._ends:
            return True
        else:
            change, armed = self._choose_end(payload, gate)
        plan = Plan(0, key, request, window, change, "" if armed else armed.reason)
        try:
            plan = self._plans.publish(plan)
        except OSError:
            self._profiler.withdraw(gate, f"{self._plans.directory} cannot be written")
            raise
        if window is not None:
            armed = armed if isinstance(payload, WindowRequest) and payload.wants(0) else plan.answer_elsewhere()
            self._ends.clear()
        else:
            self._profiler.confirm(gate)
            self._ends.add(key)
        self._latest, self._unable = (plan, armed), 0
        self._concluded(plan, armed)
        return True

    def _all_joined(self) -> bool:
        if self._plans.ranks() >= self._world_size - 1:
            self._waits_until = 0.0
        return time.monotonic() >= self._waits_until

    def _earliest_step(self) -> int:
        """The first step that the other ranks can learn in time."""
        return self._profiler.step_num + math.ceil(self._pace.per_second * self._margin) + LEAST_STEPS

    def _choose(self, payload: WindowRequest, trigger: str, gate: PlannedGate) -> tuple[WindowRequest | None, Armed]:
        """Chooses the steps of a window, and arms it if rank 0 records it."""
        unknown = [rank for rank in payload.ranks or () if rank >= self._world_size]
        if unknown:
            named = f"rank{'s' * (len(unknown) > 1)} {ranks_text(unknown)}"
            return _refused(payload, f"{named}: this job has ranks 0 to {self._world_size - 1}, so none records")
        least, reason = 0, ""
        for _ in range(ATTEMPTS):
            step, ahead = self._profiler.step_num, self._earliest_step() + payload.warmup
            too_near = ahead if self._pace.per_second else step + 1
            window, reason = choose_steps(payload, ahead, least, too_near, f"rank 0 is at step {step}")
            if window is None:
                return _refused(payload, reason)
            first = int(window.start_step)
            if not payload.wants(0):
                return window, Armed(True)
            armed = self._profiler.arm(window, trigger=trigger, gate=gate)
            if armed:
                return window, armed
            reason = f"rank 0: {refusal_reason(payload, armed.reason)}"
            nearest = nearest_of(payload, first, self._profiler.step_num, armed.nearest)
            if nearest is None or not allows_later_steps(payload):
                break
            least = nearest
        return _refused(payload, reason)

    def _choose_end(self, payload: EndRequest, gate: PlannedGate) -> tuple[EndChange | None, Armed]:
        """Chooses how windows end. The change takes effect on rank 0 when the gate is confirmed."""
        step, ahead = self._profiler.step_num, self._earliest_step()
        if payload.command == "abort":  # rank 0 does not know windows that only other ranks record
            last = min(ahead - 1, MAX_STEP)
            change = EndChange(command="abort", last=last, run_id=payload.run_id, reason=payload.reason[:500])
            return change, self._profiler.change_end(change, gate=gate)
        chosen = choose_end(payload, {0: self._profiler.armed()}, ahead)
        if chosen.change is None:
            return None, Armed(False, reason=chosen.reason)
        if not payload.seconds and chosen.change.until < ahead:
            reason = f"the window ends with step {chosen.change.until}, too soon to extend it on all ranks: rank 0 is at step {step}"
            return None, Armed(False, reason=reason)
        armed = self._profiler.change_end(chosen.change, gate=gate)
        return (chosen.change if armed else None), armed


def _refused(payload: WindowRequest, reason: str) -> tuple[None, Armed]:
    return None, Armed(False, run_id=payload.run_id, reason=reason)

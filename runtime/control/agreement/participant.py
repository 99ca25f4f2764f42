"""The participants, all ranks but rank 0: they follow the plans, or report why they cannot."""

from __future__ import annotations

import logging
from collections.abc import Callable

from stepscope.runtime.control.agreement.plans import Plan, Plans, Unable
from stepscope.runtime.requests.armable import Armable
from stepscope.runtime.requests.armed import Armed
from stepscope.runtime.requests.end_change import NOTHING_WAITS, EndChange
from stepscope.runtime.requests.window_request import WindowRequest

log = logging.getLogger("stepscope")


class PlannedGate:
    """The gate of a window or a change whose steps are fixed, as for several ranks, and that can be withdrawn."""

    def __call__(self, step: int) -> str:
        return ""


class Participant:
    """Follows the plans for one profiler, each once and in their order."""

    def __init__(
        self, plans: Plans, profiler: Armable, rank: int, name: str, concluded: Callable[[Plan, Armed], object]
    ) -> None:
        """
        Args:
            plans: of rank 0.
            profiler: that records.
            rank: of this process.
            name: of the profiler within its process.
            concluded: called with each plan and this rank's answer.
        """
        self._plans, self._profiler, self._rank, self._name = plans, profiler, rank, name
        self._concluded = concluded
        self._followed = 0

    def turn(self) -> None:
        """Follows new plans.

        Raises:
            OSError: if the directory cannot be used.
        """
        numbers = [number for number in self._plans.numbers() if number > self._followed]
        for number in numbers:
            plan = self._plans.plan(number)
            if plan is None and number == numbers[-1]:
                return  # it may be readable in the next turn
            self._followed = number
            if plan is None:
                log.error("control: plan-%d.json in %s cannot be read", number, self._plans.directory)
            elif plan.request.profiler == self._name:
                self._follow(plan)

    def _follow(self, plan: Plan) -> None:
        armed = plan.answer_elsewhere()
        if plan.window is not None and plan.request.window is not None and plan.request.window.wants(self._rank):
            armed = self._arm(plan.window, plan.first, plan.request.trigger)
        elif plan.change is not None and self._has_window(plan.change):
            armed = self._change(plan.change)
        self._concluded(plan, armed)
        if not armed and not plan.refused:
            self._plans.report_unable(plan.number, Unable(self._rank, armed.reason[:2000]))

    def _arm(self, window: WindowRequest, first: int, trigger: str) -> Armed:
        armed = self._profiler.arm(window, trigger=trigger, gate=PlannedGate())
        step = self._profiler.step_num
        if armed or step < first:
            return armed
        reason = (
            f"rank {self._rank} missed the window: it was at step {step} already when it read that the window starts with "
            f"step {first}; ask again with a later start_step"
        )
        self._profiler.note_missed(window, reason, trigger=trigger)
        return Armed(False, run_id=window.run_id, reason=reason)

    def _has_window(self, change: EndChange) -> bool:
        return change.command == "abort" or any(each.first == change.first for each in self._profiler.armed())

    def _change(self, change: EndChange) -> Armed:
        armed = self._profiler.change_end(change)
        if armed or change.command == "extend":
            return armed
        ended = self._profiler.abort(change.run_id or None, reason=change.reason)
        if not ended:
            return Armed(True, None, change.last, change.run_id, NOTHING_WAITS)
        reason = f"rank {self._rank} was past step {change.last} already: its window ends with step {ended[0].last}"
        return Armed(False, run_id=change.run_id, reason=reason)

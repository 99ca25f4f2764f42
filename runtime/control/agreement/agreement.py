"""Agreement of the ranks of a job: rank 0 chooses steps, and publishes them as plans; the other ranks follow the plans.

docs/control-reference.md describes it in full.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

from stepscope.runtime.control.agreement.job_directory import AnyRequest, JobDirectory, Plan, Plans, Request
from stepscope.runtime.control.rate import Pace
from stepscope.runtime.errors import ControlError
from stepscope.runtime.files.encoding import json_bytes
from stepscope.runtime.requests.armed import Armed
from stepscope.runtime.requests.end_change import NOTHING_WAITS, EndChange, EndRequest, choose_end
from stepscope.runtime.requests.placement import allows_later_steps, choose_steps, nearest_of
from stepscope.runtime.requests.window_request import MAX_STEP, WindowRequest
from stepscope.runtime.session.ranks import ranks_text
from stepscope.runtime.steps.arming import Arming

log = logging.getLogger("stepscope")

ATTEMPTS = 8
"""Choices of steps for one request: each after the window that collided with the previous one."""
LEAST_STEPS = 2
"""Minimum number of steps between rank 0's step and the first chosen one."""

Outcome = Callable[[AnyRequest, str, Armed], object]
"""Called with a request, its trigger, and the answer."""


class Timing(msgspec.Struct, frozen=True):
    """Times of an agreement, in seconds."""

    patience: float
    """After this time a request that rank 0 has not answered is refused. `next` waits half of it for ranks to join."""
    poll: float
    """The most seconds between two turns."""
    margin: float | None = None
    """Seconds from rank 0's choice of a step to this step; default: two turns and a second."""


class _Pending(msgspec.Struct):
    """A request of this rank without a decision."""

    request: Request
    since: float
    forwarded: bool = False


class Agreement:
    """One profiler's part in the agreement. One thread calls `turn()` from time to time; no method waits."""

    def __init__(
        self,
        directory: JobDirectory,
        profiler: Arming,
        *,
        rank: int,
        world_size: int,
        timing: Timing,
        outcome: Outcome,
        log_prefix: str = "control: ",
    ) -> None:
        """
        Args:
            outcome: called with each request and its answer; on rank 0 again when other ranks report that they cannot follow.
            log_prefix: begins each line of the log.
        """
        self._directory, self._profiler, self._rank, self._world_size = directory, profiler, rank, world_size
        self._patience, self._outcome, self._log_prefix = timing.patience, outcome, log_prefix
        self._alive_within = max(timing.patience, 3 * timing.poll)
        self._quiet_s = max(3 * timing.poll, 1.0)
        self._margin = 2 * timing.poll + 1.0 if timing.margin is None else timing.margin
        self._pace = Pace(self._margin)
        self._pending: dict[str, _Pending] = {}
        self._plans: Plans | None = None
        self._waits_until = 0.0
        """Time until which `next` waits for ranks that have not joined."""
        self._followed = 0
        """Number of the latest plan that this rank has read."""
        self._latest: tuple[int, Plan, Armed] | None = None
        """Rank 0's latest plan, with its number and rank 0's answer."""
        self._unable = 0
        """Number of ranks that cannot follow it."""
        self._name = ""
        self.trouble = ""
        """Why the directory cannot be used; empty if it can."""

    def begin(self) -> None:
        """Names this profiler by its stage and number, so that the first of a stage agrees with the first on other ranks."""
        if not self._name:
            counted = str(self._directory.path), self._rank, self._profiler.stage
            _begun[counted] += 1
            self._name = f"{_begun[counted]} {self._profiler.stage}"

    def request(self, payload: AnyRequest, trigger: str, key: str = "") -> None:
        """Requests a window on all ranks, or another end of windows.

        All ranks, including rank 0, read a request of the watched file (trigger `file`); others are forwarded to rank 0.
        Requests with the same key, by default the request itself, are one.
        """
        self.begin()
        name = hashlib.sha256((key or json_bytes(payload).decode()).encode()).hexdigest()[:16]
        window = payload if isinstance(payload, WindowRequest) else None
        end = payload if isinstance(payload, EndRequest) else None
        self._pending[name] = _Pending(Request(self._name, trigger, window, end), time.monotonic())

    @property
    def directory(self) -> Path | None:
        """Directory of the plans; `None` before this rank has joined."""
        return None if self._plans is None else self._plans.directory

    def turn(self) -> None:
        """Follows new plans, or decides on requests."""
        self.begin()
        self._pace.add(time.monotonic(), self._profiler.step_num)
        trouble = ""
        try:
            run = self._directory.enter(self._quiet_s)
            if run is not None:
                self._take_part(run)
        except ControlError as error:
            trouble = str(error)
        except OSError as error:
            trouble = f"{self._directory.path} cannot be used: {error}"
        if trouble:
            if trouble != self.trouble:
                log.error("%s%s", self._log_prefix, trouble)
            for key in list(self._pending):
                self._refuse(key, trouble)
        self.trouble = trouble
        if self._rank or self._plans is None:
            self._refuse_late()

    def close(self) -> None:
        """Stops following plans, and withdraws the pending requests of this rank."""
        for key in list(self._pending):
            self._remove_request(key)

    def _take_part(self, run: Path) -> None:
        if self._plans is None or self._plans.directory != run:
            self._plans, self._followed = Plans(run), 0
            self._waits_until = time.monotonic() + self._patience / 2
            for pending in self._pending.values():
                pending.forwarded = False
        if self._rank:
            self._follow_plans(self._plans)
            self._forward(self._plans)
        else:
            self._add_unable(self._plans)
            for key, pending in list(self._pending.items()):
                if key in self._pending and self._decide(self._plans, key, pending.request):
                    self._pending.pop(key, None)
            for key, request in self._plans.requests(self._name):
                if self._decide(self._plans, key, request):
                    self._plans.request_path(key).unlink(missing_ok=True)

    def _conclude(self, plan: Plan, armed: Armed) -> None:
        payload, trigger = plan.request.payload, plan.request.trigger
        for key, pending in list(self._pending.items()):
            if key == plan.key or (trigger == "file" and pending.request.payload == payload):
                del self._pending[key]
        self._outcome(payload, trigger, armed)

    def _refuse_late(self) -> None:
        """Refuses requests that rank 0 has not answered in time. A rank 0 that runs answers requests of the file itself."""
        reason = (
            f"rank 0, which chooses the steps, did not answer in {self._patience:g} s: it has ended or has not begun, or its loop "
            "does not move; ask again when it runs, or set agree=False, and each rank records by itself"
        )
        until, runs = time.monotonic() - self._patience, self._directory.has_coordinator(self._alive_within)
        for key in [key for key, each in self._pending.items() if each.since <= until]:
            if runs and self._pending[key].request.trigger == "file":
                del self._pending[key]
            else:
                self._refuse(key, reason)

    def _refuse(self, key: str, reason: str) -> None:
        request = self._pending[key].request
        self._remove_request(key)
        self._outcome(request.payload, request.trigger, _refused(request.payload, reason))

    def _remove_request(self, key: str) -> None:
        if self._pending.pop(key).forwarded and self._plans is not None:
            with contextlib.suppress(OSError):  # in an unusable directory, rank 0 cannot read the request either
                self._plans.request_path(key).unlink(missing_ok=True)

    # rank 0

    def _decide(self, plans: Plans, key: str, request: Request) -> bool:
        """Decides on a request, and publishes the plan. Returns false if the loop's pace is unknown, or a rank has not joined.

        Raises:
            OSError: if the plan cannot be written. Then nothing is recorded or changed.
        """
        payload = request.payload
        window: WindowRequest | None = None
        change: EndChange | None = None
        if isinstance(payload, WindowRequest):
            open_triggers = [each.trigger for each in self._profiler.armed() if each.open]
            if request.trigger == "signal" and "signal" in open_triggers:
                return True
            joined = plans.ranks() >= self._world_size - 1 or time.monotonic() >= self._waits_until
            if payload.start_step == "next" and not (joined and self._pace.is_measured):
                return False
            window, armed = self._choose(payload, request.trigger, key)
        else:
            change, reason = self._choose_end(payload)
            armed = Armed(change is not None, reason=reason)
        plan = Plan(key, request, window, change, "" if armed else armed.reason)
        try:
            number = plans.publish(plan)
        except OSError:
            self._profiler.withdraw(key, f"{plans.directory} cannot be written")
            raise
        if window is not None:
            armed = armed if isinstance(payload, WindowRequest) and payload.wants(0) else _answer_elsewhere(plan)
        elif change is not None:
            armed = self._change_end(change)
        self._latest, self._unable = (number, plan, armed), 0
        self._conclude(plan, armed)
        return True

    def _earliest_step(self) -> int:
        """The first step that the other ranks can learn in time."""
        return self._profiler.step_num + math.ceil(self._pace.per_second * self._margin) + LEAST_STEPS

    def _choose(self, payload: WindowRequest, trigger: str, key: str) -> tuple[WindowRequest | None, Armed]:
        """Chooses the steps of a window, and arms it if rank 0 records it."""
        unknown = [rank for rank in payload.ranks or () if rank >= self._world_size]
        if unknown:
            return None, _refused(
                payload, f"{_named(unknown)}: this job has ranks 0 to {self._world_size - 1}, so none records"
            )
        least, reason = 0, ""
        for _ in range(ATTEMPTS):
            step, ahead = self._profiler.step_num, self._earliest_step() + payload.warmup
            too_near = ahead if self._pace.per_second else step + 1
            window, reason = choose_steps(payload, ahead, least, too_near, f"rank 0 is at step {step}")
            if window is None or not payload.wants(0):
                return window, Armed(True) if window is not None else _refused(payload, reason)
            armed = self._profiler.arm(window, trigger=trigger, plan=key)
            if armed:
                return window, armed
            reason = f"rank 0: {armed.reason}"
            nearest = nearest_of(payload, int(window.start_step), self._profiler.step_num, armed.nearest)
            if nearest is None or not allows_later_steps(payload):
                break
            least = nearest
        return None, _refused(payload, reason)

    def _choose_end(self, payload: EndRequest) -> tuple[EndChange | None, str]:
        """Chooses how windows end; or returns the reason why they cannot be changed."""
        step, ahead = self._profiler.step_num, self._earliest_step()
        if payload.command == "abort":  # rank 0 does not know windows that only other ranks record
            last = min(ahead - 1, MAX_STEP)
            return EndChange(command="abort", last=last, run_id=payload.run_id, reason=payload.reason[:500]), ""
        change, _, reason = choose_end(payload, {0: self._profiler.armed()}, ahead)
        if change is not None and not payload.seconds and change.until < ahead:
            reason = f"the window ends with step {change.until}, too soon to extend it on all ranks: rank 0 is at step {step}"
            change = None
        return change, reason

    def _add_unable(self, plans: Plans) -> None:
        """Adds reports of ranks that cannot follow the latest plan to the answer."""
        if self._latest is None:
            return
        number, plan, armed = self._latest
        unable = plans.unable(number)
        if len(unable) > self._unable:
            self._unable = len(unable)
            notes = [*filter(None, [armed.reason]), f"not on {_named(list(unable))}: {next(iter(unable.values()))}"]
            self._conclude(plan, msgspec.structs.replace(armed, reason="; ".join(notes)))

    # the other ranks

    def _forward(self, plans: Plans) -> None:
        """Forwards requests to rank 0, which deletes them when it has decided."""
        for key, pending in list(self._pending.items()):
            if pending.request.trigger == "file":
                continue
            if not pending.forwarded:
                plans.forward(key, pending.request)
                pending.forwarded = True
            elif not plans.request_path(key).exists():
                del self._pending[key]

    def _follow_plans(self, plans: Plans) -> None:
        numbers = plans.numbers(self._followed)
        for number in numbers:
            plan = plans.plan(number)
            if plan is None and number == numbers[-1]:
                return  # it may be readable in the next turn
            self._followed = number
            if plan is None:
                log.error("%splan-%d.json in %s cannot be read", self._log_prefix, number, plans.directory)
            elif plan.request.profiler == self._name:
                armed = self._follow(plan)
                self._conclude(plan, armed)
                if not armed and not plan.refused:
                    plans.report_unable(number, self._rank, armed.reason)

    def _follow(self, plan: Plan) -> Armed:
        window, change, requested = plan.window, plan.change, plan.request.window
        if window is not None and requested is not None and requested.wants(self._rank):
            return self._arm(window, plan)
        if change is None or (
            change.command == "extend" and all(each.first != change.first for each in self._profiler.armed())
        ):
            return _answer_elsewhere(plan)
        return self._change_end(change)

    def _arm(self, window: WindowRequest, plan: Plan) -> Armed:
        trigger = plan.request.trigger
        armed = self._profiler.arm(window, trigger=trigger, plan=plan.key)
        step = self._profiler.step_num
        if armed or window.start_step == "next" or step < window.start_step:
            return armed
        reason = (
            f"rank {self._rank} missed the window: it was at step {step} already when it read that the window starts with "
            f"step {window.start_step}; ask again with a later start_step"
        )
        self._profiler.note_missed(window, reason, trigger=trigger)
        return _refused(window, reason)

    # all ranks

    def _change_end(self, change: EndChange) -> Armed:
        """Applies a change. A rank that is past the new end of an abort ends its windows at once."""
        armed = self._profiler.change_end(change)
        if armed or change.command == "extend":
            return armed
        ended = self._profiler.abort(change.run_id or None, reason=change.reason)
        if not ended:
            return Armed(True, None, change.last, change.run_id, NOTHING_WAITS)
        reason = f"rank {self._rank} was past step {change.last} already: its window ends with step {ended[0].last}"
        return Armed(False, run_id=change.run_id, reason=reason)


def _refused(payload: AnyRequest, reason: str) -> Armed:
    return Armed(False, run_id=payload.run_id, reason=reason)


def _named(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {ranks_text(ranks)}"


def _answer_elsewhere(plan: Plan) -> Armed:
    """Returns the answer on a rank that the plan does not concern."""
    payload, window = plan.request.payload, plan.window
    if window is None or window.start_step == "next" or not isinstance(payload, WindowRequest):
        return Armed(not plan.refused, run_id=payload.run_id, reason=plan.refused or "asked of other ranks")
    return Armed(True, window.start_step, window.stop_step, payload.run_id, f"by {_named(list(payload.ranks or ()))}")


_begun: Counter[tuple[str, int, str]] = Counter()
"""Number of profilers of this process, by directory, rank and stage."""

os.register_at_fork(after_in_child=_begun.clear)

"""Agreement of the ranks of a job: rank 0, the coordinator, chooses steps and publishes plans; the participants follow them.

docs/control.md describes it in full.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from stepscope.runtime.control.agreement.coordinator import Coordinator
from stepscope.runtime.control.agreement.job_directory import JobDirectory
from stepscope.runtime.control.agreement.participant import Participant
from stepscope.runtime.control.agreement.plans import AnyRequest, Plan, Plans, Request
from stepscope.runtime.errors import ControlError
from stepscope.runtime.files.encoding import json_bytes
from stepscope.runtime.requests.armable import Armable
from stepscope.runtime.requests.armed import Armed
from stepscope.runtime.requests.end_change import EndRequest
from stepscope.runtime.requests.window_request import WindowRequest

log = logging.getLogger("stepscope")

ACTIVE_S = 0.05
"""Seconds between two turns while a request is pending."""
AWAKE_S = 10.0
"""Seconds after a request, or the start, in which turns come faster."""

Outcome = Callable[[AnyRequest, str, Armed], object]
"""Called with a request, its trigger, and the answer."""


class _Pending:
    """A request of this rank without a decision."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.since = time.monotonic()
        self.forwarded = False


class Agreement:
    """One profiler's part in the agreement. One thread calls `turn()` from time to time; no method waits."""

    def __init__(
        self,
        directory: JobDirectory,
        profiler: Armable,
        *,
        rank: int,
        world_size: int,
        patience: float = 20.0,
        idle: float = 2.0,
        margin: float | None = None,
        outcome: Outcome = lambda request, trigger, armed: None,
    ) -> None:
        """
        Args:
            directory: of the job.
            profiler: that records.
            rank: of this process.
            world_size: number of ranks.
            patience: seconds after which a request that rank 0 has not answered is refused.
            idle: seconds between two turns while no request is pending.
            margin: seconds from rank 0's choice of a step to this step; default: two turns and a second.
            outcome: called with each request and its answer.
        """
        self._directory, self._profiler, self._rank, self._world_size = directory, profiler, rank, world_size
        self._patience, self._idle, self._outcome = patience, idle, outcome
        self._margin = 2 * idle + 1.0 if margin is None else margin
        self._pending: dict[str, _Pending] = {}
        self._plans: Plans | None = None
        self._part: Coordinator | Participant | None = None
        self._name = ""
        self._awake_until = 0.0
        self.trouble = ""
        """Why the directory cannot be used; empty if it can."""

    def begin(self) -> None:
        """Names this profiler by its stage and number, so that the first of a stage agrees with the first on other ranks."""
        if not self._name:
            counted = str(self._directory.path), self._rank, self._profiler.stage
            _begun[counted] += 1
            self._name = f"{_begun[counted]} {self._profiler.stage}"
            self._awake_until = time.monotonic() + AWAKE_S

    def ask(self, payload: AnyRequest, trigger: str, key: str = "") -> None:
        """Requests a window on all ranks, or another end of windows.

        Args:
            payload: the request.
            trigger: its origin. All ranks, including rank 0, read a request of the watched file (`file`); others are
                forwarded to rank 0.
            key: identifies equal requests. Default: the request itself.
        """
        self.begin()
        name = hashlib.sha256((key or json_bytes(payload).decode()).encode()).hexdigest()[:16]
        window = payload if isinstance(payload, WindowRequest) else None
        end = payload if isinstance(payload, EndRequest) else None
        self._pending[name] = _Pending(Request(self._name, trigger, window, end))
        self._awake_until = time.monotonic() + AWAKE_S

    @property
    def directory(self) -> Path | None:
        """Directory of the plans; `None` before this rank has joined."""
        return None if self._plans is None else self._plans.directory

    def turn(self) -> float:
        """Makes progress, and returns the seconds until the next turn, at most."""
        self.begin()
        try:
            self._turn()
            self.trouble = ""
        except (OSError, ControlError) as error:
            trouble = (
                str(error) if isinstance(error, ControlError) else f"{self._directory.path} cannot be used: {error}"
            )
            if trouble != self.trouble:
                log.error("control: %s", trouble)
            self.trouble = trouble
            self._refuse(list(self._pending), trouble)
        self._refuse_late()
        if time.monotonic() >= self._awake_until:
            return self._idle
        return min(self._idle, ACTIVE_S if self._pending else 4 * ACTIVE_S)

    def close(self) -> None:
        """Stops following plans, and withdraws the pending requests of this rank."""
        for key in list(self._pending):
            self._remove_request(key)

    def _turn(self) -> None:
        run = self._directory.enter(self._rank, self.directory)
        if run is None:
            return
        if self._plans is None or self._plans.directory != run:
            self._join(Plans(run))
        assert self._plans is not None
        if isinstance(self._part, Coordinator):
            self._part.turn()
            for key, pending in list(self._pending.items()):
                if key in self._pending and self._part.decide(key, pending.request):
                    self._pending.pop(key, None)
            for key, request in self._plans.requests(self._name):
                if self._part.decide(key, request):
                    self._plans.request_path(key).unlink(missing_ok=True)
        elif self._part is not None:
            self._part.turn()
            self._forward(self._plans)

    def _join(self, plans: Plans) -> None:
        self._plans = plans
        if self._rank:
            self._part = Participant(plans, self._profiler, self._rank, self._name, self._conclude)
        else:
            self._part = Coordinator(
                plans, self._profiler, self._world_size, self._margin, self._patience / 2, self._conclude
            )

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

    def _conclude(self, plan: Plan, armed: Armed) -> None:
        payload, trigger = plan.request.payload, plan.request.trigger
        for key, pending in list(self._pending.items()):
            if key == plan.key or (trigger == "file" and pending.request.payload == payload):
                del self._pending[key]
        self._outcome(payload, trigger, armed)

    def _refuse_late(self) -> None:
        """Refuses requests that rank 0 has not answered in time. A rank 0 that runs answers requests of the file itself."""
        late = [key for key, each in self._pending.items() if time.monotonic() - each.since >= self._patience]
        if not late or isinstance(self._part, Coordinator):
            return
        why = "its process has ended, or has not come"
        if self._directory.has_coordinator:
            why = "its profiler is closed, or its loop does not move"
            for key in [key for key in late if self._pending[key].request.trigger == "file"]:
                late.remove(key)
                self._remove_request(key)
        reason = (
            f"rank 0, which chooses the steps, did not answer in {self._patience:g} s: {why}; ask again when it runs, or set "
            "agree=False, and each rank records by itself"
        )
        self._refuse(late, reason)

    def _refuse(self, keys: list[str], reason: str) -> None:
        for key in keys:
            request = self._pending[key].request
            self._remove_request(key)
            self._outcome(request.payload, request.trigger, Armed(False, run_id=request.payload.run_id, reason=reason))

    def _remove_request(self, key: str) -> None:
        if self._pending.pop(key).forwarded and self._plans is not None:
            with contextlib.suppress(OSError):  # in an unusable directory, rank 0 cannot read the request either
                self._plans.request_path(key).unlink(missing_ok=True)


_begun: Counter[tuple[str, int, str]] = Counter()
"""Number of profilers of this process, by directory, rank and stage."""

os.register_at_fork(after_in_child=_begun.clear)

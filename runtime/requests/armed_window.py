"""An armed window: its state, and its facts for the metadata of the recorded window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepscope.runtime.requests.armed import ArmedState, ArmedStatus
from stepscope.runtime.requests.window_request import WindowRequest
from stepscope.runtime.schedule.schedule import NEVER
from stepscope.runtime.windows.window import ARMED, Step


class ArmedWindow:
    """A requested window of one profiler, whose lock guards it."""

    def __init__(self, request: WindowRequest, trigger: str, first: int, last: int) -> None:
        """Args: the request; its trigger; first step, and last step, `NEVER` if it ends by the clock."""
        self.settings: object = None
        """The program's settings at the time of the request, for a program that records the window itself."""
        self.request = request
        self.trigger = trigger
        self.first = first
        self.last = last
        self.plan = ""
        """Name by which it can be withdrawn. A window with a plan keeps its steps, as other ranks agreed on them."""
        self.proposed = False
        """Whether it is not recorded without a decision."""
        self.state: ArmedState = "queued"
        self.reason = ""
        self.detail_checked = False
        """Whether the open backends were asked whether they support its detail."""
        self.deadline = 0
        """When it ends, in ns; 0: with its last step."""
        self.longer = 0
        """Time by which it was extended before it began, in ns."""
        self.abort_reason: str | None = None
        """Why `last` was moved to an earlier step."""

    @property
    def begin(self) -> int:
        """The first step of its warm-up."""
        return max(self.first - self.request.warmup, 0)

    @property
    def timed(self) -> bool:
        """Whether its length is in seconds."""
        return self.request.seconds is not None

    def is_over(self, step: int, now: int) -> bool:
        """Whether the running window has ended before this step, which begins `now`, in ns."""
        return step > self.last or (0 < self.deadline <= now)

    def move(self, step: int) -> None:
        """Moves it to begin with this step, or with the next one that begins a group, with the same length."""
        length = self.last - self.first
        self.first = self.request.group_from(step)
        self.last = NEVER if self.last == NEVER else self.first + length

    def note(self, text: str) -> None:
        self.reason = f"{self.reason}; {text}" if self.reason else text

    def end(self, state: ArmedState, reason: str = "") -> None:
        self.state = state
        if reason:
            self.note(reason)

    def status(self) -> ArmedStatus:
        return ArmedStatus(
            run_id=self.request.run_id,
            trigger=self.trigger,
            requested=self.request.text(),
            state=self.state,
            first=self.first,
            last=None if self.last == NEVER else self.last,
            reason=self.reason,
            granularity=self.request.granularity,
        )

    def facts(self) -> dict[str, Any]:
        """Returns facts for the window's metadata, as known at its begin."""
        request = self.request
        facts = {
            "trigger": self.trigger,
            "run_id": request.run_id,
            "requested": request.text(),
            "start_step": request.start_step,
            "stop_step": request.stop_step,
            "steps": request.steps,
            "seconds": request.seconds,
            "granularity": request.granularity if request.granularity > 1 else None,
            "stage": request.stage,
            "detail": None if request.detail is None else request.detail.text(),
        }
        return {name: value for name, value in facts.items() if value not in (None, "")}


def add_recorded(facts: dict[str, Any], rank: int | None, steps: Sequence[Step]) -> None:
    """Completes the metadata of a finished window, if it was armed, by the steps that this rank has recorded."""
    armed: dict[str, Any] | None = facts.get(ARMED)
    if armed is None or not steps:
        return
    first, last = steps[0].number, steps[-1].number
    armed.update(first_step=first, last_step=last, name=recorded_name(rank, first, last, str(armed.get("run_id", ""))))


def recorded_name(rank: int | None, first: int, last: int, run_id: str = "") -> str:
    """Returns a name for a window's files: `rank0_start10_stop12`, and `_` with the run id if there is one."""
    name = f"rank{rank or 0}_start{first}_stop{last}"
    return f"{name}_{run_id}" if run_id else name

"""What is asked of a profiler from outside of its process, and what it answers. Socket and collector speak the same."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from stepscope.runtime.requests.armed import Armed, ArmedStatus
from stepscope.runtime.requests.end_change import EndChange, EndRequest
from stepscope.runtime.requests.window_request import Rank, RunId, Seconds, StepNumber, WindowRequest

VERSION = 1
"""Of commands and answers; a process that knows another one only says so."""
MAX_BYTES = 1 << 16
"""Of a command or an answer."""
MAX_RATE = 1e9
"""Steps per second: one takes a nanosecond at least. After the number of the step was set, readings may say more."""

Version = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
Pid = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
Name = Annotated[str, msgspec.Meta(max_length=80)]
StepsPerSecond = Annotated[float, msgspec.Meta(ge=0, le=MAX_RATE)]


class Command(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One command."""

    version: Version = VERSION
    command: Literal["arm", "extend", "abort", "status", "propose", "decide"]
    """`propose` arms a window, or changes when one ends, only if `decide` says so before that makes a difference."""
    request: WindowRequest | None = None
    """For `arm` and `propose`."""
    end: EndChange | None = None
    """For `propose`, instead of a request."""
    steps: StepNumber = 0
    """For `extend`."""
    seconds: Seconds = 0.0
    """For `extend`."""
    run_id: RunId | None = None
    """For `abort`: only windows of this run id."""
    proposal: Name = ""
    """For `propose` and `decide`: which."""
    committed: bool = False
    """For `decide`."""
    reason: Annotated[str, msgspec.Meta(max_length=500)] = ""
    """For `decide` and `abort`: why."""

    def end_request(self) -> EndRequest:
        """What `extend` and `abort` ask for."""
        if self.command == "extend":
            return EndRequest(command="extend", steps=self.steps, seconds=self.seconds)
        return EndRequest(command="abort", run_id=self.run_id or "", reason=self.reason or "a command")


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one profiler answers. Numbers have bounds, as those of a command: whoever is connected can send any."""

    version: Version = VERSION
    profiler: str = ""
    rank: Rank | None = None
    stage: str = ""
    """That it is of; empty if nobody says."""
    host: str = ""
    pid: Pid = 0
    step: StepNumber = 0
    """Number of its current step."""
    rate: StepsPerSecond = 0.0
    """Its steps per second, lately."""
    armed: Armed | None = None
    """For `arm`, `propose` and `extend`, and for an `abort` on several ranks."""
    windows: tuple[ArmedStatus, ...] = ()
    """For `abort` those that it ends, for `status` all that are known."""
    error: str = ""
    """Why nothing was done."""

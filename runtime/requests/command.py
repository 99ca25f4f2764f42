"""Commands of other processes to a profiler, and its answers. The socket and the collector use the same."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from stepscope.runtime.requests.armed import Armed, ArmedStatus
from stepscope.runtime.requests.end_change import EndChange, EndRequest
from stepscope.runtime.requests.window_request import Rank, RunId, Seconds, StepNumber, WindowRequest

VERSION = 1
"""Version of commands and answers; a process with another version answers with an error."""
MAX_BYTES = 1 << 16
"""Size limit of a command or an answer."""
MAX_RATE = 1e9
"""Upper bound, in steps per second: a program that sets the step number can cause any rate."""

Version = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
Pid = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
Name = Annotated[str, msgspec.Meta(max_length=80)]
StepsPerSecond = Annotated[float, msgspec.Meta(ge=0, le=MAX_RATE)]


class Command(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One command."""

    version: Version = VERSION
    command: Literal["arm", "extend", "abort", "status", "propose", "decide"]
    """`propose` prepares a window, or another end of one. It takes effect only if `decide` confirms it in time."""
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
    """For `propose` and `decide`: name of the proposal."""
    committed: bool = False
    """For `decide`."""
    reason: Annotated[str, msgspec.Meta(max_length=500)] = ""
    """For `decide` and `abort`: the reason."""

    def end_request(self) -> EndRequest:
        if self.command == "extend":
            return EndRequest(command="extend", steps=self.steps, seconds=self.seconds)
        return EndRequest(command="abort", run_id=self.run_id or "", reason=self.reason or "a command")


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Answer of one profiler. All numbers have bounds, because a peer can send any."""

    version: Version = VERSION
    profiler: str = ""
    rank: Rank | None = None
    stage: str = ""
    """Its stage; empty without one."""
    host: str = ""
    pid: Pid = 0
    step: StepNumber = 0
    """Number of its current step."""
    rate: StepsPerSecond = 0.0
    """Steps per second while its loop moves; 0 if unknown."""
    armed: Armed | None = None
    """For `arm`, `propose` and `extend`, and for an `abort` on several ranks."""
    windows: tuple[ArmedStatus, ...] = ()
    """For `abort` the windows that it ends, for `status` all."""
    error: str = ""
    """Why nothing was done."""

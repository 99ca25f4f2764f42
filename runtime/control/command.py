"""What is asked of a profiler from outside of its process, and what it answers. Socket and collector speak the same."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from stepscope.runtime.control.armed import Armed, ArmedStatus
from stepscope.runtime.control.window_request import RunId, WindowRequest

VERSION = 1
"""Of commands and answers; a process that knows another one only says so."""
MAX_BYTES = 1 << 16
"""Of a command or an answer."""

Name = Annotated[str, msgspec.Meta(max_length=80)]


class Command(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One command."""

    version: int = VERSION
    command: Literal["arm", "extend", "abort", "status", "propose", "decide"]
    """`propose` arms a window that is recorded only if `decide` says so before it begins."""
    request: WindowRequest | None = None
    """For `arm` and `propose`."""
    steps: Annotated[int, msgspec.Meta(ge=0)] = 0
    """For `extend`."""
    seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """For `extend`."""
    run_id: RunId | None = None
    """For `abort`: only windows of this run id."""
    proposal: Name = ""
    """For `propose` and `decide`: which."""
    committed: bool = False
    """For `decide`."""
    reason: Annotated[str, msgspec.Meta(max_length=500)] = ""
    """For `decide` and `abort`: why."""


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one profiler answers."""

    version: int = VERSION
    profiler: str = ""
    rank: int | None = None
    host: str = ""
    pid: int = 0
    step: int = 0
    """Number of its current step."""
    rate: float = 0.0
    """Its steps per second, lately."""
    armed: Armed | None = None
    """For `arm`, `propose` and `extend`."""
    windows: tuple[ArmedStatus, ...] = ()
    """For `abort` those that it ends, for `status` all that are known."""
    error: str = ""
    """Why nothing was done."""

"""The interface of a profiler that control needs."""

from __future__ import annotations

from typing import Protocol

from stepscope.runtime.requests.armed import Armed, ArmedStatus
from stepscope.runtime.requests.armed_window import Gate
from stepscope.runtime.requests.end_change import EndChange
from stepscope.runtime.requests.window_request import WindowRequest


class Armable(Protocol):
    """A profiler that accepts requests for windows. Any thread may call its methods, and none waits."""

    name: str

    @property
    def step_num(self) -> int:
        """Number of the current step."""
        ...

    @property
    def stage(self) -> str:
        """Name of its stage; empty if it has none."""
        ...

    def arm(self, request: WindowRequest, *, trigger: str = "call", gate: Gate | None = None) -> Armed: ...

    def change_end(self, change: EndChange, *, gate: Gate | None = None) -> Armed: ...

    def confirm(self, gate: Gate) -> bool: ...

    def note_missed(self, request: WindowRequest, reason: str, *, trigger: str = "call") -> None: ...

    def withdraw(self, gate: Gate, reason: str) -> bool: ...

    def extend(self, steps: int = 0, *, seconds: float = 0.0) -> Armed: ...

    def abort(self, run_id: str | None = None, *, reason: str = "abort() was called") -> tuple[ArmedStatus, ...]: ...

    def armed(self) -> tuple[ArmedStatus, ...]: ...

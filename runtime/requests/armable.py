"""What control needs of a profiler."""

from __future__ import annotations

from typing import Protocol

from stepscope.runtime.requests.armed import Armed, ArmedStatus
from stepscope.runtime.requests.armed_window import Gate
from stepscope.runtime.requests.end_change import EndChange
from stepscope.runtime.requests.window_request import WindowRequest


class Armable(Protocol):
    """A profiler, as far as windows are asked of it. Every method may be called from any thread, and never waits."""

    name: str

    @property
    def step_num(self) -> int:
        """Number of the current step."""
        ...

    @property
    def stage(self) -> str:
        """Name of the stage that it is of; empty if nobody says."""
        ...

    def arm(self, request: WindowRequest, *, trigger: str = "call", gate: Gate | None = None) -> Armed: ...

    def change_end(self, change: EndChange, *, gate: Gate | None = None) -> Armed: ...

    def confirm(self, gate: Gate) -> bool: ...

    def note_missed(self, request: WindowRequest, reason: str, *, trigger: str = "call") -> None: ...

    def withdraw(self, gate: Gate, reason: str) -> bool: ...

    def extend(self, steps: int = 0, *, seconds: float = 0.0) -> Armed: ...

    def abort(self, run_id: str | None = None, *, reason: str = "abort() was called") -> tuple[ArmedStatus, ...]: ...

    def armed(self) -> tuple[ArmedStatus, ...]: ...

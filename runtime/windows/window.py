"""A finished window: the argument of `on_trace_ready` and `close_window`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from stepscope.runtime.accounting.ledger import Ledger
from stepscope.runtime.settings.documented import Documented

if TYPE_CHECKING:
    from stepscope.runtime.windows.summary import Summary

ARMED = "armed"
"""Key in `Window.metadata`: an object with `name`, `first_step`, `last_step`, `trigger`, `run_id` and the request."""
FLIGHT = "flight"
"""Key of the metadata of a window that a flight recorder saved: which trigger fired, in which step, and why."""


class Step(msgspec.Struct, frozen=True, gc=False):
    """One recorded step."""

    number: int
    """The value of `step_num`: 0 for the first step of training."""
    start_ns: int
    end_ns: int


class WindowActions(Protocol):
    """Implementation of the methods of a live window. The profiler provides it."""

    def summary(self, window: Window) -> Summary: ...

    def export(self, window: Window, path: Path, format: str | None) -> Path: ...


class Window(Documented, frozen=True, kw_only=True, dict=True):
    """A stretch of consecutive recorded steps, complete and closed. Times are ns of the monotonic clock."""

    index: int
    """0 for the first window of the run."""
    profiler: str
    """Name of the profiler."""
    start_ns: int
    """When its first step began."""
    end_ns: int
    """When it ended: with its last step, or with the run if something was recorded after the last `step()`."""
    steps: tuple[Step, ...]
    """Its steps, in order, with number and times. A call of `step()` ends each. A run that never calls `step()` is one step."""
    complete: bool
    """False if the run ended (or `stop()` was called) before the `step()` with which the schedule ends the window, if a source
    recorded nothing for a part of it, or had not delivered all of it in time. `ledger` counts dropped events. Events that come later
    than a source has said are late: `Profiler.diagnostics` has them."""
    diagnostics: tuple[str, ...] = ()
    """Why the window is empty, partial or incomplete, in words."""
    ledger: Ledger = Ledger()
    """Its accounts: events that each source produced, and events dropped by reason."""
    metadata: Mapping[str, Any] = {}
    """Metadata of the run, and of this window."""
    wall_start_ns: int = 0
    """Unix time of `start_ns`."""
    actions: WindowActions | None = None
    """Implementation of `summary` and `export`; `None` for a window that was read from a file."""

    def _live(self) -> WindowActions:
        if self.actions is None:
            from stepscope.runtime.errors import ProfilerStateError

            raise ProfilerStateError(
                f"window {self.index} was read back from a file; convert the file with `stepscope convert` instead"
            )
        return self.actions

    def summary(self) -> Summary:
        """The summary of this window, which was computed while events arrived."""
        return self._live().summary(self)

    def export(self, path: str | os.PathLike[str], format: str | None = None) -> Path:
        """Writes this window to `path`. It can be called repeatedly, with any formats.

        Args:
            path: file to write; its ending names the format (`.json`, `.json.gz`, `.pt.trace.json`, `.journal`).
            format: name of a format, if the ending of the path does not name it.

        Returns:
            The path written.

        Raises:
            ProfilerStateError: if the run has no journal from which the events can be read.
            OutputError: if the file cannot be written.
            ValueError: if no format has that name or ending.
        """
        return self._live().export(self, Path(path), format)


WindowCallback = Callable[[Window], Any]
"""`on_trace_ready`: a plain callable or a coroutine function."""


def which_windows(numbers: Sequence[int]) -> str:
    """Says which windows there are, for a message that there is no such window."""
    if not numbers:
        return "none of its windows has ended"
    if len(numbers) > 2:
        return f"it has {len(numbers):,} windows, from {numbers[0]} to {numbers[-1]}"
    return f"it has only window {numbers[0]}" if len(numbers) == 1 else f"it has windows {numbers[0]} and {numbers[1]}"

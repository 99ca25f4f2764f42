"""A finished window: what `on_trace_ready` and `close_window` get."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from stepscope.runtime.accounting.ledger import Ledger
from stepscope.runtime.settings.documented import Documented

if TYPE_CHECKING:
    from stepscope.runtime.windows.summary import Summary

ARMED = "armed"
"""Key in `Window.metadata`: an object with `name`, `first_step`, `last_step`, `trigger`, `run_id` and the request."""


class Step(msgspec.Struct, frozen=True, gc=False):
    """One recorded step."""

    number: int
    """As given to `step_num`: 0 for the first step of training."""
    start_ns: int
    end_ns: int


class WindowActions(Protocol):
    """What a live window can do beyond holding data; given by the profiler that made it."""

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
    """When it ended: with its last step, or when the run did, if something was recorded after the last `step()`."""
    steps: tuple[Step, ...]
    """Its steps, in order, with number and times. A step is what a call of `step()` has ended; only a run that never
    calls it is one step as a whole."""
    complete: bool
    """False if the run ended (or `stop()` was called) before the `step()` with which the schedule ends the window, or if a
    source recorded nothing for a part of it, or delivered after it was closed. Events that were dropped are counted in `ledger`."""
    diagnostics: tuple[str, ...] = ()
    """Why the window is empty, partial or incomplete, in words."""
    ledger: Ledger = Ledger()
    """Its accounts: what each source produced, and what was dropped and why."""
    metadata: Mapping[str, Any] = {}
    """Facts of the run, and of this window."""
    wall_start_ns: int = 0
    """Unix time of `start_ns`."""
    actions: WindowActions | None = None
    """What `summary` and `export` ask; `None` in a window that was read back from a file."""

    def _live(self) -> WindowActions:
        if self.actions is None:
            from stepscope.runtime.errors import ProfilerStateError

            raise ProfilerStateError(
                f"window {self.index} was read back from a file; convert the file with `stepscope convert` instead"
            )
        return self.actions

    def summary(self) -> Summary:
        """The aggregate table of this window; it was kept while the events streamed by."""
        return self._live().summary(self)

    def export(self, path: str | os.PathLike[str], format: str | None = None) -> Path:
        """Writes this window, and no other, to `path`, any number of times and in any format.

        Args:
            path: file to write; its ending names the format (`.json`, `.json.gz`, `.pt.trace.json`, `.journal`).
            format: name of a format, if the ending does not say it.

        Returns:
            The path written.

        Raises:
            ProfilerStateError: if the run keeps no journal to read the events from.
            OutputError: if the file cannot be written.
            ValueError: if no format is known by that name or ending.
        """
        return self._live().export(self, Path(path), format)


WindowCallback = Callable[[Window], Any]
"""`on_trace_ready`: a plain callable or a coroutine function."""

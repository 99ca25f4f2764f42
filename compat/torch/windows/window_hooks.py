"""Calls on the training thread at the begin and end of each window, besides recording."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol

from stepscope.compat.torch.activities import has_torch
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.sources.sink import BackendReport, Sink

_FOREVER = (1 << 63) - 1
MAX_IDS = 64
"""The most identifiers of windows in memory."""


class Observer(Protocol):
    """The methods of torch's execution trace observers."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def cleanup(self) -> None: ...


def is_observer(value: object) -> bool:
    """True if it is an instance with all methods of `Observer`."""
    return not isinstance(value, type) and all(
        callable(getattr(value, name, None)) for name in ("start", "stop", "cleanup")
    )


def observer_of_environment() -> Observer | None:
    """torch's own observer if `ENABLE_PYTORCH_EXECUTION_TRACE=1`, as `torch.profiler.profile` makes it; `None` in a torch that
    makes none."""
    if os.environ.get("ENABLE_PYTORCH_EXECUTION_TRACE") != "1" or not has_torch():
        return None
    make: Any = getattr(
        import_module("torch.profiler").ExecutionTraceObserver, "build_execution_trace_obs_from_env", None
    )
    observer: Observer | None = None if make is None else make()
    return observer


class WindowHooks:
    """Starts and stops an observer with each window, and asks for the window's identifier.

    A backend without events: it is bound to the thread that steps, where torch would call these as well. The profiler
    stores their exceptions.
    """

    name = "finished"
    thread_bound = True

    def __init__(self, observer: Observer | None, make_id: Callable[[], str] | None) -> None:
        self.observer = observer
        self.make_id = make_id
        self._observing = False
        self._ids: list[tuple[int, str]] = []

    def open(self, sink: Sink) -> None:
        sink.watermark(_FOREVER)

    def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        ends = before.records and (before is ProfilerAction.RECORD_AND_SAVE or not after.records)
        try:
            if ends and self.observer is not None and self._observing:
                self._observing = False
                self.observer.stop()
        finally:
            if after.records and (ends or not before.records):
                self._begin(at)

    def _begin(self, at: int) -> None:
        if self.make_id is not None:
            self._ids = [*self._ids[-MAX_IDS:], (at, str(self.make_id()))]
        if self.observer is not None:
            self.observer.start()
            self._observing = True

    def id_at(self, at: int) -> str | None:
        """The identifier of the window that had begun at a time, in ns; `None` if none was made."""
        return next((text for begun, text in reversed(self._ids) if begun <= at), None)

    async def aclose(self) -> None:
        pass

    def report(self) -> BackendReport:
        return BackendReport(mode="hooks")

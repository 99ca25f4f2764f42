"""`StepscopeTracker` for Accelerate: records what a program logs in the trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accelerate.tracking import GeneralTracker  # type: ignore[import-untyped]

from stepscope.compat.frameworks.accelerate import StepscopeProfileKwargs
from stepscope.compat.frameworks.loop import Loop, TracingCallback, stores_errors
from stepscope.compat.frameworks.loop_settings import LoopSettings
from stepscope.runtime.profiler import Profiler


class StepscopeTracker(TracingCallback, GeneralTracker):  # type: ignore[misc]
    """To be given as `Accelerator(log_with=[StepscopeTracker(handler)])`.

    Numbers that are logged become counters of the trace, and the configuration of `init_trackers` its metadata, of
    whatever stepscope records then. The other way, `handler.last.metrics()` are step times for `accelerator.log`.

    Args:
        handler: whose run gets the metadata; without it only numbers are recorded.
    """

    name = "stepscope"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self, handler: StepscopeProfileKwargs | None = None) -> None:
        super().__init__()
        self.handler = handler
        self.loop = Loop(LoopSettings(), "accelerate")
        """Records nothing; it keeps errors."""

    @property
    def tracker(self) -> Profiler | None:
        """The profiler of the handler's run, if there is one."""
        run = None if self.handler is None else self.handler.last
        return None if run is None else run.profiler

    @stores_errors
    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Adds the configuration to the metadata of the handler's runs, the one that is open included."""
        if self.handler is None:
            return
        metadata = self.handler.settings.get("metadata") or {}
        self.handler.settings["metadata"] = {**metadata, "configuration": dict(values)}
        if self.tracker is not None:
            self.tracker.add_metadata("configuration", dict(values))

    @stores_errors
    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Records numbers as counters, at this time; texts are left out."""
        self.loop.counters({name: value for name, value in values.items() if isinstance(value, int | float)})

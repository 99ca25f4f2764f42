"""Accelerate: `with accelerator.profile(...)` records with stepscope, and the trace has what the program logs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.backends.base import Backend
from stepscope.backends.torch.backend import TorchBackend
from stepscope.backends.torch.settings import DEVICES, SWITCHES
from stepscope.compat.frameworks import raise_missing
from stepscope.compat.frameworks.accelerate_run import AccelerateRun
from stepscope.compat.frameworks.loop import Loop, TracingCallback, stores_errors
from stepscope.compat.frameworks.loop_settings import LoopArguments, LoopSettings
from stepscope.compat.torch.activities import choose
from stepscope.compat.torch.windows.finished_window import TorchFlags
from stepscope.compat.torch.windows.memory_timeline import NEEDS, LatestResults
from stepscope.exporters.base import Exporter
from stepscope.runtime.lifecycle.output_directory import RUNS
from stepscope.runtime.profiler import Profiler
from stepscope.runtime.schedule.schedule import schedule
from stepscope.runtime.settings.arguments import got
from stepscope.runtime.settings.validation import suggesting

if TYPE_CHECKING:
    from accelerate.tracking import GeneralTracker  # type: ignore[import-untyped]
    from accelerate.utils import ProfileKwargs as _ProfileKwargs  # type: ignore[import-untyped]
else:
    try:
        from accelerate.tracking import GeneralTracker
        from accelerate.utils import ProfileKwargs as _ProfileKwargs
    except ModuleNotFoundError as error:
        raise_missing(error, "accelerate", "Accelerate", "accelerate")


@dataclass
class StepscopeProfileKwargs(_ProfileKwargs):  # type: ignore[misc]
    """Replaces `accelerate.utils.ProfileKwargs`, and has its fields.

    Pass it to `Accelerator(kwargs_handlers=[...])` or to `accelerator.profile(...)`. With `output_trace_dir`, Accelerate
    writes `profile_<rank>.json` there when the run has ended: all windows of it, where torch's profiler gives the last.
    `on_trace_ready` gets a `FinishedWindow` (a view of the run) for each window, off the training thread, with `key_averages`,
    `events`, `export_chrome_trace`, `export_stacks` and so on as torch's has them, or is an exporter. Without
    `schedule_option` everything in the `with` is one window.

    Attributes:
        activities: such as `["cpu", "cuda"]`, for torch's operators; as in Accelerate, default: what there is.
        schedule_option: `wait`, `warmup`, `active`, `repeat`, `skip_first`, and `skip_first_wait`.
        settings: more of `stepscope.compat.frameworks.loop_settings.LoopSettings`, such as `{"exporters": [...]}`. `output_dir`
            is `output_trace_dir`/stepscope_runs if it is not given.

    Raises:
        TypeError, ValueError: if a value is not what it should be, when it is made and not in training.
    """

    on_trace_ready: Callable[..., Any] | Exporter | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    settings: LoopArguments = field(default_factory=LoopArguments)
    last: AccelerateRun | None = field(default=None, init=False, repr=False, compare=False)
    """The run that was built last; it has `metrics()` and `errors`."""

    def __post_init__(self) -> None:
        self._settings()
        self._backends(None)

    # `Accelerator` looks up by the exact class what a handler is for, so a subclass has to pass for its base. Copies are
    # made by hand then, for pickle would take the wrong class.
    @property  # type: ignore[misc]
    def __class__(self) -> type[Any]:  # pyright: ignore[reportIncompatibleMethodOverride, reportIncompatibleVariableOverride]
        kind: type[Any] = _ProfileKwargs
        return kind

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (self.to_dict(),)

    def build(self) -> AccelerateRun:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Makes the context manager that Accelerate enters."""
        ready = self.on_trace_ready
        callback = None if ready is None or isinstance(ready, Exporter) else ready
        results = LatestResults() if all(getattr(self, need) for need in NEEDS) else None
        device = next((device for device in DEVICES if device in self._chosen()[1]), None)
        torch_flags = TorchFlags(**self._flags(), use_device=None if device is None else device.lower())
        backends = partial(self._backends, results)
        self.last = AccelerateRun(self._settings(), backends, callback, torch_flags, results)
        return self.last

    def to_dict(self) -> dict[str, Any]:
        """The handler's fields, as Accelerate returns them, without the run, which is no setting."""
        return {name: value for name, value in vars(self).items() if name != "last"}

    def to_kwargs(self) -> dict[str, Any]:
        """The fields that differ from the default."""
        default = StepscopeProfileKwargs().to_dict()
        return {name: value for name, value in self.to_dict().items() if value != default[name]}

    def _settings(self) -> LoopSettings:
        settings: dict[str, Any] = dict(self.settings)
        for name in {"schedule", "on_trace_ready"} & settings.keys():
            other = "schedule_option" if name == "schedule" else name
            raise ValueError(f"settings[{name!r}] is a field of its own here; give {other}=...")
        if settings.get("unit") == "epoch":
            raise ValueError("settings['unit']: Accelerate reports no epochs; call step() once for each")
        option = self.schedule_option
        if "keep_last" not in settings:
            # Accelerate's own names; a wrong one is refused by name.
            settings["schedule"] = (
                None if option is None else schedule(**{"wait": 0, "warmup": 0, "active": 1, **option})
            )
        elif option is not None:
            raise ValueError("keep_last records at all times, so it takes no schedule_option; leave one out")
        if isinstance(self.on_trace_ready, Exporter):
            settings["exporters"] = [*settings.get("exporters", ()), self.on_trace_ready]
        elif self.on_trace_ready is not None and not callable(self.on_trace_ready):
            raise TypeError(f"on_trace_ready must be callable or an exporter, {got(self.on_trace_ready)}")
        if self.output_trace_dir is not None:
            settings.setdefault("output_dir", str(Path(self.output_trace_dir) / RUNS))
        return LoopSettings.of(settings)

    def _chosen(self) -> tuple[list[Any] | None, set[str]]:
        names: object = self.activities
        if isinstance(names, str) or not isinstance(names, Iterable | None):
            raise TypeError(f"activities must be a list, {got(names)}; write activities=['cpu']")
        return choose(None if names is None else [_activity(str(name)) for name in names], None)

    def _flags(self) -> dict[str, Any]:
        return {flag: getattr(self, flag) for flag in SWITCHES.values()}

    def _backends(self, results: LatestResults | None) -> Sequence[Backend]:
        return (TorchBackend(keeper=results, activities=self._chosen()[0], **self._flags()),)


setattr(StepscopeProfileKwargs, "__init__", suggesting(StepscopeProfileKwargs.__init__))  # noqa: B010  # a dataclass makes it


def _remade(fields: dict[str, Any]) -> StepscopeProfileKwargs:
    return StepscopeProfileKwargs(**fields)


def _activity(name: str) -> Any:
    from torch.profiler import ProfilerActivity

    activities = {member.lower(): value for member, value in ProfilerActivity.__members__.items()}
    if name not in activities:
        raise ValueError(f"unknown activity {name!r}: it must be one of {', '.join(activities)}")
    return activities[name]


class StepscopeTracker(TracingCallback, GeneralTracker):  # type: ignore[misc]
    """Records logged values: `Accelerator(log_with=[StepscopeTracker(handler)])`.

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
        """Stores errors; it records nothing."""

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

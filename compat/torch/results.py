"""Tables, events and exports of a profile, and of the view of one of its windows that `on_trace_ready` gets."""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from stepscope.backends.parallel_layout import groups
from stepscope.compat.torch.activities import has_torch
from stepscope.compat.torch.events.averages import averages
from stepscope.compat.torch.events.function_events import FunctionEvents, build_tree
from stepscope.compat.torch.events.window_spans import WindowSpans
from stepscope.compat.torch.windows.finished_window import FinishedWindow, TorchFlags, export_window
from stepscope.compat.torch.windows.memory_timeline import NEEDS, LatestResults, export_memory_timeline
from stepscope.exporters.files.output import whole_file
from stepscope.runtime.errors import BackendError, ProfilerStateError
from stepscope.runtime.events import clock
from stepscope.runtime.export.run import Metadata
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.settings.validation import suggesting
from stepscope.runtime.windows.window import Window


class Results(ABC):
    """The half of `torch.profiler.profile` that returns and exports results, any number of times."""

    _torch_flags: TorchFlags
    _results: LatestResults | None = None
    post_processing_timeout_s: float | None = None

    def __init__(self) -> None:
        self._built: tuple[Sequence[FinishedWindow], Any] | None = None

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]
        """torch's class, if the program has imported it, so that `isinstance(prof, torch.profiler.profile)` is true. It is no
        base class, as torch would have to be imported for that."""
        return getattr(sys.modules.get("torch.profiler"), "profile", type(self))

    @abstractmethod
    def _finished_windows(self) -> Sequence[FinishedWindow]:
        """The windows that count, the last one last.

        Raises:
            ProfilerStateError: if the profile was never started.
        """

    def _counted(self) -> Sequence[FinishedWindow]:
        """The windows whose events count: none if the last one is empty, as in torch."""
        return self._finished_windows()

    @abstractmethod
    def facts(self, finished: FinishedWindow) -> Mapping[str, Any]:
        """Keys of the trace that an export of a window has beside its events."""

    def key_averages(
        self, group_by_input_shape: bool = False, group_by_stack_n: int = 0, group_by_overload_name: bool = False
    ) -> Any:
        """Operators of one name in a row: torch's own `EventList`, so `.table()` and the like are torch's.

        Without grouping and memory no object is made for an event.

        Args:
            group_by_input_shape: a row for each name and shapes of inputs; needs `record_shapes`.
            group_by_stack_n: a row for each name and so many callers, the innermost first; needs `with_stack`.
            group_by_overload_name: a row for each overload; needs torch's `capture_overload_names`.

        Raises:
            ProfilerStateError: if the profile was never started.
            BackendError: if torch is not installed.
        """
        _need_torch("key_averages()")
        windows = self._counted()
        torch_flags = self._torch_flags
        grouped = group_by_input_shape or group_by_stack_n > 0 or group_by_overload_name
        if not (grouped or torch_flags.profile_memory or torch_flags.with_flops or torch_flags.use_device):
            return averages(WindowSpans(finished) for finished in windows)
        return self.events().key_averages(group_by_input_shape, group_by_stack_n, group_by_overload_name)

    def events(self) -> Any:
        """Every operator as torch's own `FunctionEvent`, in torch's own `EventList`; read from the run's journal now.

        It stops after `post_processing_timeout_s`, with what there is by then.

        Raises:
            ProfilerStateError: if the profile was never started.
            BackendError: if torch is not installed.
        """
        _need_torch("events()")
        windows = self._counted()
        if self._built is None or self._built[0] != windows:
            self._built = windows, self._build(windows)
        return self._built[1]

    def _build(self, windows: Sequence[FinishedWindow]) -> Any:
        seconds = self.post_processing_timeout_s
        deadline = None if seconds is None else clock.now() + round(seconds * 1e9)
        lists = [FunctionEvents(finished, deadline).build() for finished in windows]
        if not lists:
            util: Any = import_module("torch.autograd.profiler_util")
            empty = util.EventList([], profile_memory=self._torch_flags.profile_memory)
            build_tree(empty)
            return empty
        for further in lists[1:]:
            lists[0].extend(further)
        return lists[0]

    def export_chrome_trace(self, path: str | os.PathLike[str], use_python_export: bool = False) -> None:
        """Writes the last window as a trace in Chrome's format, for Perfetto, HTA and, if it is called
        `.pt.trace.json`, for TensorBoard. A name that ends in `.gz` is compressed.

        Args:
            path: file to write; missing directories are made.
            use_python_export: taken, as torch has it; there is one way of writing here.

        Raises:
            ProfilerStateError: if there is no window yet.
            OutputError: if the file cannot be written.
        """
        finished = self._last("a trace")
        export_window(finished, Path(path), self.facts(finished))

    def export_stacks(self, path: str | os.PathLike[str], metric: str = "self_cpu_time_total") -> None:
        """Writes a line for each operator's stack, outermost first, with its µs: what flame graphs are made of.

        Args:
            path: file to write.
            metric: `self_cpu_time_total` or `self_cuda_time_total`, and the like for other devices.

        Raises:
            ProfilerStateError: if there is no window yet, or stacks were not recorded.
            ValueError: if there is no such metric.
        """
        if not self._torch_flags.with_stack:
            raise ProfilerStateError("export_stacks() needs stacks: make the profile with with_stack=True")
        self._last("stacks")
        events = self.events()
        with whole_file(Path(path)) as place:
            events.export_stacks(str(place), metric)

    def export_memory_timeline(self, path: str | os.PathLike[str], device: str | None = None) -> None:
        """Writes how much memory was in use when, by what it was used for, as torch makes it of its recording.

        Args:
            path: its ending names the format: `.html` (needs matplotlib), `.raw.json.gz`, `.json.gz`, else JSON.
            device: such as `cpu` or `cuda:0`; default: the accelerator that was recorded, else the host.

        Raises:
            ProfilerStateError: if shapes, memory and stacks were not recorded, or the window is not the last.
            BackendError: if this version of torch makes no timelines, or `.html` is asked for without matplotlib.
        """
        missing = [name for name in NEEDS if not getattr(self._torch_flags, name)]
        if missing or self._results is None:
            wanted = ", ".join(f"{name}=True" for name in missing)
            raise ProfilerStateError(f"export_memory_timeline() needs more: make the profile with {wanted}")
        result = self._results.of(self._last("a memory timeline").window)
        export_memory_timeline(result, path, device, self._torch_flags.use_device)

    def get_trace_id(self) -> str | None:
        """Identifies the last window; `None` before there is one."""
        windows = self._finished_windows()
        return windows[-1].trace_id if windows else None

    # what programs ask of the inner profiler of torch

    @property
    def profiler(self) -> Results:
        """Stands for torch's inner `autograd.profiler.profile`: `function_events`, `table`, `total_average` and so on."""
        return self

    @property
    def function_events(self) -> Any:
        """Calls `events()`."""
        return self.events()

    @property
    def self_cpu_time_total(self) -> float:
        """µs of the host in all operators."""
        return float(sum(average.self_cpu_time_total for average in self.key_averages()))

    def total_average(self) -> Any:
        """All operators in one row."""
        return self.events().total_average()

    def table(self, *args: Any, **kwargs: Any) -> str:
        """Returns a table with a row for each event; see torch's `EventList.table`."""
        return str(self.events().table(*args, **kwargs))

    def _last(self, what: str) -> FinishedWindow:
        windows = self._finished_windows()
        if not windows:
            raise ProfilerStateError(f"there is no window yet to make {what} of: none has ended that holds anything")
        return windows[-1]


def _need_torch(what: str) -> None:
    if not has_torch():
        raise BackendError(
            f"{what} gives objects of torch's own classes, and torch is not installed; export_chrome_trace() and summary() "
            "work without it"
        )


def export_facts(finished: FinishedWindow, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Facts that an export of a window has beside its events, as torch writes them: the settings, the ranks and the metadata."""
    flags = ("profile_memory", "with_stack", "record_shapes", "with_modules", "with_flops")
    return {
        **{flag: 1 for flag in flags if getattr(finished.torch_flags, flag)},
        "trace_id": finished.trace_id,
        **groups.of_window(finished.window.end_ns),
        **metadata,
    }


class View(Results):
    """A profile as it was when a window was over: the same methods and attributes, however far training has come since.

    Results, exports, `step_num` and `current_action` are those of the window, also when it is kept and asked later.
    Metadata that is added here belongs to this window alone. Everything else is the profile's own.
    """

    def __init__(self, owner: Results, windows: Sequence[FinishedWindow], action: ProfilerAction) -> None:
        """Args: the profile; the windows that count, the last one last; what the step after it does."""
        super().__init__()
        self._owner = owner
        self._frozen = tuple(windows)
        self._torch_flags = windows[-1].torch_flags
        self._results = owner._results
        self._metadata = Metadata()
        self.post_processing_timeout_s = owner.post_processing_timeout_s
        self.step_num = windows[-1].step_num
        """Number of the step that had begun when the window was over."""
        self.current_action = action
        """The action of that step."""

    @property
    def window(self) -> Window:
        """The window itself, with its steps, times, accounts and diagnostics."""
        return self._frozen[-1].window

    def add_metadata(self, key: str, value: Any) -> None:
        """Adds a fact to exports of this window."""
        self._metadata.add(key, value)

    def add_metadata_json(self, key: str, value: str) -> None:
        """Adds a fact that is JSON text to exports of this window."""
        self._metadata.add_json(key, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._owner, name)

    def _finished_windows(self) -> Sequence[FinishedWindow]:
        return self._frozen

    def facts(self, finished: FinishedWindow) -> Mapping[str, Any]:
        return {**self._owner.facts(finished), **self._metadata.snapshot()}


@suggesting
def tensorboard_trace_handler(
    dir_name: str | os.PathLike[str],
    worker_name: str | None = None,
    use_gzip: bool = False,
    use_python_export: bool = False,
) -> Callable[[Any], None]:
    """An `on_trace_ready` that writes `<worker>.<nanoseconds>.pt.trace.json` for each window of a profile, ours or torch's own.

    Args:
        dir_name: the run's directory, made where it is missing; give it to TensorBoard as `--logdir`.
        worker_name: must differ between processes of one run; by default `<host>_<pid>`.
        use_gzip: whether to compress.
        use_python_export: taken, as torch has it; there is one way of writing here.

    Raises:
        ValueError: if the worker's name cannot be part of a file's name.
    """
    if worker_name is not None and not re.fullmatch(r"[^/\\\0]+", worker_name):
        raise ValueError(f"worker_name must be a part of a file's name, got {worker_name!r}")
    suffix = ".pt.trace.json.gz" if use_gzip else ".pt.trace.json"
    stamp = 0

    def export(prof: Any) -> None:
        nonlocal stamp
        worker = worker_name or f"{socket.gethostname()}_{os.getpid()}"
        # The plugin sorts by this number: two windows of one clock reading must not share it.
        stamp = max(time.time_ns(), stamp + 1)
        directory = Path(dir_name)
        directory.mkdir(parents=True, exist_ok=True)
        prof.export_chrome_trace(str(directory / f"{worker}.{stamp}{suffix}"))

    return export

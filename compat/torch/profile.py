"""`profile`: torch.profiler's context manager on stepscope's runtime."""

from __future__ import annotations

import logging
import os
import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, Self

from msgspec.structs import replace

from stepscope.backends.base import Backend
from stepscope.backends.torch.backend import Mode, TorchBackend
from stepscope.backends.torch.kineto.slot import slot
from stepscope.backends.torch.settings import DEVICES
from stepscope.build import trace
from stepscope.compat.torch.activities import choose, has_torch, members
from stepscope.compat.torch.results import Results, View, export_facts
from stepscope.compat.torch.windows.callbacks import Callbacks
from stepscope.compat.torch.windows.finished_window import FinishedWindow, TorchFlags
from stepscope.compat.torch.windows.memory_timeline import NEEDS, LatestResults
from stepscope.compat.torch.windows.window_hooks import Observer, WindowHooks, is_observer, observer_of_environment
from stepscope.exporters.base import Exporter
from stepscope.exporters.journal import JournalExporter
from stepscope.runtime.control.entry_points.environment import options_in_effect
from stepscope.runtime.control.settings import Control
from stepscope.runtime.display.code_places import warn
from stepscope.runtime.display.text_table import human_time
from stepscope.runtime.errors import ExporterError, ProfilerStateError
from stepscope.runtime.events import clock
from stepscope.runtime.export.run import Metadata
from stepscope.runtime.options import Options
from stepscope.runtime.profiler import Profiler
from stepscope.runtime.schedule.action import ProfilerAction, checked_action
from stepscope.runtime.schedule.schedule import PlannedSchedule, ScheduleFunction, always, never
from stepscope.runtime.settings.arguments import got
from stepscope.runtime.settings.validation import suggesting
from stepscope.runtime.steps.step_controller import step_number
from stepscope.runtime.windows.window import Window

log = logging.getLogger("stepscope")

CLOSE_TIMEOUT_S = 60.0
"""Seconds that windows wait for torch's recordings, and closing for everything: users of torch expect all of a trace."""


_STEP = "ProfilerStep"
"""Name under which torch's profiler counts steps. Optimizers count them under names of their own."""


class profile(Results):
    """Records operators as `torch.profiler.profile` does, with the same parameters, methods and attributes.

    The events are in a journal on disk, so results and exports may be asked for any number of times, and survive a
    kill (`stepscope recover`). `start()` and `stop()` may alternate any number of times; profiles may nest. Once started
    nothing raises into training, except calls in the wrong order.
    """

    @suggesting
    def __init__(
        self,
        *,
        activities: Iterable[Any] | None = None,
        schedule: ScheduleFunction | None = None,
        on_trace_ready: Callable[..., Any] | Exporter | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
        experimental_config: Any = None,
        execution_trace_observer: Observer | None = None,
        acc_events: bool = False,
        use_cuda: bool | None = None,
        custom_trace_id_callback: Callable[[], str] | None = None,
        post_processing_timeout_s: float | None = None,
        mode: Mode = "auto",
        name: str = "torch",
        output_dir: str | os.PathLike[str] | None = None,
        exporters: Sequence[Exporter] = (),
        options: Options | None = None,
        control: str | os.PathLike[str] | Control | None = None,
    ) -> None:
        """
        Args:
            activities: members of `ProfilerActivity`, or dicts from these to kinds of events. Default: all there are.
            schedule: from a step's number to a `ProfilerAction`, torch's or ours. Default: record always.
            on_trace_ready: called with a view of each finished window, on a thread of its own; `stop()` and the end of the
                `with` wait for it. Its exception is logged, and is in `errors`. An exporter is added to `exporters`.
            record_shapes: keep shapes of inputs.
            profile_memory: keep allocations.
            with_stack: keep Python's functions, and operators' callers.
            with_flops: keep torch's estimates of floating-point operations.
            with_modules: keep the hierarchy of TorchScript modules.
            experimental_config: torch's `_ExperimentalConfig`.
            execution_trace_observer: started and stopped with each window, cleaned up at the end of the `with`.
            acc_events: let `events()` and `key_averages()` have all windows so far, not only the last.
            use_cuda: deprecated by torch.
            custom_trace_id_callback: names each window; default: a random identifier.
            post_processing_timeout_s: seconds after which `events()` gives what it has, with a warning on torch's logger.
            mode: of `TorchBackend`: `auto`, `stream` or `kineto`.
            name: of the run, in reports and outputs.
            output_dir: of the run's journal; default: a new directory under `stepscope_runs`.
            exporters: further outputs, written while training goes on.
            options: sizes of buffers, deadlines, and what is dropped first.
            control: as for `stepscope.trace`; without a schedule only requested windows are recorded.

        STEPSCOPE_OPTIONS takes the place of what it names, as for `stepscope.trace`; a journal is kept in any case.

        Raises:
            TypeError: if an argument is not what it should be.
            ValueError: if a value cannot be, as a device that is not there, alone.
        """
        super().__init__()
        wanted, names = choose(activities, use_cuda)
        for what, function in (("schedule", schedule), ("on_trace_ready", on_trace_ready)):
            fits = callable(function) or (what == "on_trace_ready" and isinstance(function, Exporter))
            if function is not None and not fits:
                raise TypeError(f"{what} must be callable, {got(function)}")
        if execution_trace_observer is not None and not is_observer(execution_trace_observer):
            raise TypeError(
                "execution_trace_observer must be an instance with start(), stop() and cleanup(), as torch.profiler.ExecutionTraceObserver, "
                f"{got(execution_trace_observer)}"
            )
        if post_processing_timeout_s is not None:
            if not isinstance(post_processing_timeout_s, int | float):
                raise TypeError(f"post_processing_timeout_s must be a number, {got(post_processing_timeout_s)}")
            if not post_processing_timeout_s >= 0:
                raise ValueError(f"post_processing_timeout_s must be non-negative, got {post_processing_timeout_s!r}")
        flags: dict[str, Any] = {
            "record_shapes": record_shapes,
            "profile_memory": profile_memory,
            "with_stack": with_stack,
            "with_flops": with_flops,
            "with_modules": with_modules,
        }
        self._control = Control.of(control)
        device = next((device for device in DEVICES if device in names), None)
        self._torch_flags = TorchFlags(**flags, use_device=None if device is None else device.lower())
        self._results = LatestResults() if all(flags[need] for need in NEEDS) else None
        if self._results is not None:
            weakref.finalize(self, self._results.release)
        self.activities = members(names)
        self.record_shapes, self.profile_memory = record_shapes, profile_memory
        self.with_stack, self.with_flops, self.with_modules = with_stack, with_flops, with_modules
        self.experimental_config = experimental_config
        self.execution_trace_observer = execution_trace_observer or observer_of_environment()
        self.acc_events = acc_events
        self.custom_trace_id_callback = custom_trace_id_callback
        self.post_processing_timeout_s = post_processing_timeout_s
        self.use_device = self._torch_flags.use_device
        self.record_steps = schedule is not None or self._control is not None
        self._schedule: ScheduleFunction = schedule or (always if self._control is None else never)
        self.on_trace_ready: Callable[..., Any] | None = None
        self.preset_metadata: dict[str, str] = {}
        self._run_arguments: dict[str, Any] = {"name": name, "output_dir": output_dir}
        self._exporters = list(exporters)
        if on_trace_ready is not None and isinstance(on_trace_ready, Exporter):
            self._exporters.append(on_trace_ready)
        else:
            self.on_trace_ready = on_trace_ready
        self._options = (
            Options(linger=CLOSE_TIMEOUT_S, close_timeout=CLOSE_TIMEOUT_S, signals=()) if options is None else options
        )
        self._backend = TorchBackend(
            mode,
            activities=wanted,
            experimental_config=experimental_config,
            keeper=self._results,
            **flags,
        )
        self._hooks: WindowHooks | None = None
        self._journal: JournalExporter | None = None
        self._metadata = Metadata()
        self._current: Profiler | None = None
        self._last_run: Profiler | None = None
        self._errors: list[Exception] = []
        self._callbacks = Callbacks(self._call_back)
        self._done: tuple[FinishedWindow, ...] = ()
        self._counts_for_daemon = False
        """Whether Kineto's daemon takes windows of steps, which torch counts for it."""
        self._last_is_empty = False
        """Whether the last `step()` began a window in which nothing was recorded."""
        self._step = 0
        self._renumbered = (0, 0)
        """Time of the last change of `step_num` while it ran, in ns, and the new number."""
        self._stopping: int | None = None

    # life

    def start(self) -> None:
        """Begins at the current step, as the schedule has it; after `stop()`, with the step that it ended in.

        Raises:
            ProfilerStateError: if it runs already; torch's own would record nothing from here on.
            OutputError: if the run's directory cannot be made.
            ControlError: if STEPSCOPE_OPTIONS cannot be followed. A `ValueError`.
        """
        if self._current is not None:
            raise ProfilerStateError(
                "start() of a profile that runs already; call stop() first, or make another profile"
            )
        self._look_around()
        self._counts_for_daemon = has_torch() and bool(os.environ.get("KINETO_USE_DAEMON"))
        if self._counts_for_daemon:
            _step_tracker().init_step_count(_STEP)
        self._stopping, self._last_is_empty = None, False
        self._journal = JournalExporter.of(options_in_effect(self._options))
        current = trace(
            schedule=self.schedule if self.record_steps else None,
            backends=self._sources(),
            exporters=[self._journal, *self._exporters],
            on_trace_ready=self._window_ready,
            metadata=self._metadata.snapshot(),
            options=self._options,
            control=self._control,
            start=False,
            **self._run_arguments,
        )
        # Which steps are recorded, the environment may have the last word on.
        counts = self.record_steps or current.keep_last is not None or current.schedule is not always
        self._torch_flags = replace(self._torch_flags, steps=counts)
        current.step_num = self._step
        current.start()
        self._current = self._last_run = current

    def step(self) -> None:
        """Begins the next step. While the profile does not run it only counts the step."""
        current = self._current
        if current is None:
            self._step += 1
        else:
            current.step()
        if self._counts_for_daemon:
            _step_tracker().increment_step(_STEP)

    def stop(self) -> None:
        """Ends the window that is open, and waits until it is complete and `on_trace_ready` has returned.

        Called by `on_trace_ready` itself it does not wait for that; nor does it in a forked child, where it does nothing.

        Raises:
            ProfilerStateError: if it does not run.
        """
        current = self._current
        if current is None:
            raise ProfilerStateError("stop() of a profile that does not run; call start() first")
        begun = self.record_steps and current.current_action.records
        if self.record_steps and not begun and current.step_num == self._step:
            log.warning(
                "step() of the profile was never called, and its schedule does not record step %d; call prof.step() at the end "
                "of each iteration",
                self._step,
            )
        self._step = self._stopping = current.step_num
        current.close()
        self._current = None
        last = self._done[-1].window if self._done else None
        ended = last is not None and last.complete and last.steps[-1].number < self._stopping
        self._last_is_empty = begun and ended
        self._errors += _errors_of(current)
        self._callbacks.finish()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._current is not None:
            self.stop()
        self._callbacks.finish()
        if self._counts_for_daemon:
            _step_tracker().erase_step_count(_STEP)
        if self.execution_trace_observer is not None:
            try:
                self.execution_trace_observer.cleanup()
            except Exception as error:
                log.warning("the execution trace observer did not clean up: %r", error)
                self._errors.append(error)

    def _look_around(self) -> None:
        """Logs which features are not available inside of a profile that has torch's only slot on this thread."""
        lacks = self._backend.beyond_stream
        if lacks and slot.emits:
            warn(
                f"{' and '.join(lacks)} cannot be had here: another profile on this thread records operators live; give that "
                "one the same arguments, or mode='kineto'"
            )

    def _sources(self) -> list[Backend]:
        sources: list[Backend] = []
        if has_torch():
            sources.append(self._backend)
        else:
            warn("torch is not installed: spans are recorded, and no operators")
        observer, make_id = self.execution_trace_observer, self.custom_trace_id_callback
        self._hooks = None if observer is None and make_id is None else WindowHooks(observer, make_id)
        return sources if self._hooks is None else [*sources, self._hooks]

    # while it runs

    @property
    def step_num(self) -> int:
        """Number of the current step, from 0. May be set at any time: the next step has the number after it.

        Raises:
            ValueError: if it is no whole number from 0 and the profile does not run; while it runs that is logged.
        """
        return self._step if self._current is None else self._current.step_num

    @step_num.setter
    def step_num(self, step: int) -> None:
        if self._current is not None:
            self._current.step_num = step
            self._renumbered = (clock.now(), self._current.step_num)
            return
        number = step_number(step)
        if number is None:
            raise ValueError(f"step_num must be a whole number from 0, got {step!r}")
        self._step = number

    @property
    def schedule(self) -> ScheduleFunction:
        """From a step's number to a `ProfilerAction`. May be replaced at any time: the next step asks the new one.

        Any other object is logged and ignored, as training may be under way.
        """
        return self._schedule

    @schedule.setter
    def schedule(self, schedule: ScheduleFunction) -> None:
        if not callable(schedule):
            log.error("the schedule stays as it is: it must be callable, got %r", schedule)
            return
        before, self._schedule = self._schedule, schedule
        if self._current is not None and self._current.schedule is before:  # else the environment decides
            self._current.replace_schedule(schedule)

    @property
    def current_action(self) -> ProfilerAction:
        """The current step's action. It follows from the schedule; setting it changes nothing, and is logged."""
        if self._current is not None:
            return self._current.current_action
        return checked_action(self.schedule(self._step), self._step)

    @current_action.setter
    def current_action(self, action: Any) -> None:
        log.warning("current_action = %r changes nothing: what a step does follows from the schedule", action)

    @property
    def profiler(self) -> Results:
        """Stands for torch's inner profiler, as in `Results`. Setting it changes nothing, and is logged."""
        return self

    @profiler.setter
    def profiler(self, profiler: object) -> None:
        log.warning("profiler = %r changes nothing: the profile has no other profiler inside of it", profiler)

    def toggle_collection_dynamic(self, enable: bool, activities: Iterable[Any]) -> None:
        """Switches activities off and on again inside of a window; call it where the training loop runs.

        Args:
            enable: whether they are recorded from now on.
            activities: members of `ProfilerActivity`.

        Raises:
            TypeError: if activities are no such thing.
        """
        if self._current is not None and not self._backend.toggle(enable, activities):
            log.warning("toggle_collection_dynamic() changed nothing: no operators are recorded on this thread now")

    def set_custom_trace_id_callback(self, callback: Callable[[], str]) -> None:
        """Sets the function that names windows, from the next `start()` or window on."""
        self.custom_trace_id_callback = callback
        if self._hooks is not None:
            self._hooks.make_id = callback

    def add_metadata(self, key: str, value: Any) -> None:
        """Adds a fact to every output, those of windows that are over included; before, in and after a window.

        Raises:
            TypeError: if the key is no str.
        """
        self._metadata.add(key, value)
        if self._current is not None:
            self._current.add_metadata(key, value)

    def add_metadata_json(self, key: str, value: str) -> None:
        """The same for a fact that is JSON text. Other text is kept as a string, and logged.

        Raises:
            TypeError: if key or value is no str.
        """
        self._metadata.add_json(key, value)
        if self._current is not None:
            self._current.add_metadata_json(key, value)

    def preset_metadata_json(self, key: str, value: str) -> None:
        """Does what `add_metadata_json` does, which here may be called before a window as well."""
        self.preset_metadata[key] = value
        self.add_metadata_json(key, value)

    # facts of it

    @property
    def run(self) -> Profiler:
        """The stepscope profiler of this run, or of the last: `explain()`, `summary()`, `report()` and so on.

        Raises:
            ProfilerStateError: if the profile was never started.
        """
        if self._last_run is None:
            raise ProfilerStateError("the profile was not started; call start(), or enter it by `with`")
        return self._last_run

    def raise_errors(self) -> None:
        """Raises what `on_trace_ready`, backends, exporters and the schedule raised so far, if anything.

        Raises:
            ExceptionGroup: of all that, each with the original as its cause.
        """
        errors = [*self._errors, *([] if self._current is None else _errors_of(self._current))]
        for error, text in self._callbacks.raised.retained:
            raised = ExporterError(f"on_trace_ready raised {text}")
            raised.__cause__ = error
            errors.append(raised)
        if errors:
            raise ExceptionGroup(f"the profile kept errors, {len(errors)} in number", errors)

    # Results

    def get_trace_id(self) -> str | None:
        """Identifies the last window; `None` before there is one, also where the profile was never started."""
        return None if self._last_run is None else super().get_trace_id()

    def _finished_windows(self) -> Sequence[FinishedWindow]:
        run = self.run
        if self._current is not None:
            run.flush()
        return self._done

    def _counted(self) -> Sequence[FinishedWindow]:
        windows = self._finished_windows()
        if not self._last_is_empty or self.acc_events:
            return windows
        warn(
            "the last step() began a window in which nothing was recorded: as in torch, events() and key_averages() are of that one; "
            "on_trace_ready gets each window, and with acc_events=True they are of all"
        )
        return ()

    def facts(self, finished: FinishedWindow) -> Mapping[str, Any]:
        return export_facts(finished, self._metadata.snapshot())

    def _window_ready(self, window: Window) -> None:
        """Called with each complete window, when it is in the journal."""
        assert self._journal is not None
        step = self._step_after(window)
        finished = FinishedWindow(
            torch_flags=self._torch_flags,
            window=window,
            journal=self._journal.path,
            step_num=step,
            trace_id=self._trace_id(window),
        )
        self._done = (*self._done, finished) if self.acc_events else (finished,)
        for source in window.ledger.sources.values():
            for why, ns in source.missing.items():
                log.warning("the profile lacks operators of %s: %s", human_time(ns), why)
        if self.on_trace_ready is not None:
            self._callbacks.put(View(self, self._done, self._action_at(step)))

    def _call_back(self, view: View) -> None:
        if self.on_trace_ready is not None:
            self.on_trace_ready(view)

    def _step_after(self, window: Window) -> int:
        steps, stopping = window.steps, self._stopping
        if not self._torch_flags.steps or not steps:
            return self.step_num if stopping is None else stopping
        at, number = self._renumbered
        last = (number if steps[-1].start_ns <= at < window.end_ns else steps[-1].number) + 1
        return last if stopping is None else min(last, stopping)

    def _action_at(self, step: int) -> ProfilerAction:
        schedule = self.run.schedule
        if isinstance(schedule, PlannedSchedule):
            return schedule(step)
        return self.run.current_action  # other schedules are asked once for each step

    def _trace_id(self, window: Window) -> str:
        found = None if self._hooks is None else self._hooks.id_at(window.start_ns)
        return found or f"{uuid.uuid4().int:032X}"


def _step_tracker() -> Any:
    return import_module("torch.autograd.profiler").KinetoStepTracker


def _errors_of(profiler: Profiler) -> list[Exception]:
    try:
        profiler.raise_errors()
    except ExceptionGroup as group:
        return list(group.exceptions)
    return []

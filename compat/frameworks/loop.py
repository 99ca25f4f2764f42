"""A profiler that is driven by a framework's hooks: the one place that opens, steps and closes it."""

from __future__ import annotations

import functools
import logging
import shlex
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar, cast

from stepscope.backends.base import Backend
from stepscope.backends.torch.backend import TorchBackend
from stepscope.compat.frameworks.loop_settings import LoopSettings, Unit
from stepscope.runtime._core import counter, span
from stepscope.runtime.accounting.error_log import ErrorLog, error_text
from stepscope.runtime.control.entry_points.environment import directory_from_environment
from stepscope.runtime.display.text_table import human_count, shorten
from stepscope.runtime.errors import ExporterError, FormatError, ProfilerStateError
from stepscope.runtime.lifecycle.output_directory import Output
from stepscope.runtime.profiler import Profiler
from stepscope.runtime.session.job import rank_from_environment

log = logging.getLogger("stepscope")

_SHOWN_NAME = 80
"""Characters of a logged value's name that a message shows."""
MAX_ERRORS = 64
"""Number of errors stored; further ones are counted."""
MAX_JUDGED_EVENTS = 1_000_000
"""A run with more events gets no verdict at its end: to read them would take longer than about half a second."""

Hook = TypeVar("Hook", bound=Callable[..., None])


def torch_operators() -> Sequence[Backend]:
    """The backend for torch's operators, in frameworks that run on torch."""
    return (TorchBackend(),)


class Loop:
    """The runs of one callback, one after the other: training, and validation, test or prediction by themselves.

    Each run is a profiler with a step counter of its own. Nothing of it is held before the first `open`, and a copy,
    pickled or deep, has the settings only: frameworks send callbacks to other processes. Methods raise what goes wrong;
    hooks are wrapped by `stores_errors`, which keeps it.

    Args:
        settings: what to record.
        category: of the spans; the framework's name.
        backends: makes what records if the settings do not say; default: nothing.
        counts_anew: True if the schedule counts from the first step of each run.
    """

    def __init__(
        self,
        settings: LoopSettings,
        category: str,
        backends: Callable[[], Sequence[Backend]] = tuple,
        counts_anew: bool = False,
    ) -> None:
        self.settings = settings
        self.category = category
        self._backends = backends
        self._counts_anew = counts_anew
        self.profiler: Profiler | None = None
        """The profiler of the open run, or of the last one."""
        self.stage = ""
        """The stage of the open run; empty without one."""
        self._stepped = False
        self._rank: int | None = None
        self.raised: ErrorLog[Exception] = ErrorLog(MAX_ERRORS)
        """Errors of tracing."""
        self._spans: list[tuple[str, span]] = []
        self._used: set[str] = set()
        self._first: dict[str, int] = {}
        """The step with which the first run of a stage began. The default schedule counts from there, so that it records a resumed
        training, and does not record later runs of the stage again."""
        self._recorded_nothing: set[str] = set()
        """Stages of runs that recorded nothing, as the log says once for each."""
        self._not_numbers: set[str] = set()
        """Names of logged values that were no counters."""
        self._finalizer: Callable[[], object] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Loop, (self.settings, self.category, self._backends, self._counts_anew)

    def __deepcopy__(self, memo: dict[int, Any]) -> Loop:
        # Settings do not change, and what is in them may hold locks.
        return Loop(self.settings, self.category, self._backends, self._counts_anew)

    def open(
        self,
        stage: str,
        *,
        step: int = 0,
        epoch: int = 0,
        directory: str | Path | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        """Begins a run; one that is still open is closed, and its window incomplete.

        Args:
            stage: names the run and its directory.
            step: number of its first step.
            epoch: of its first epoch, which counts if the schedule counts epochs.
            directory: where runs go unless the settings or the environment say; `None` for a new one.
            rank, world_size: where the framework knows better than the environment.

        Raises:
            OutputError: if the output cannot be written.
            ControlError: if STEPSCOPE_OPTIONS cannot be followed.
        """
        self.close()
        found_rank, found_size = rank_from_environment()
        rank = found_rank if rank is None else rank
        if self.settings.ranks is not None and (rank or 0) not in self.settings.ranks:
            return
        number = step if self.settings.unit == "step" else epoch
        first = (
            number if self._counts_anew else self._first.setdefault(stage, number) if self.settings.is_default else 0
        )
        again = [name for name in self.settings.ready_made if name in self._used]
        base = directory_from_environment(self.settings.output_dir or directory)
        profiler = self.settings.build(
            Output.choose(base, self.settings.name, None).below(stage),
            rank=rank,
            world_size=found_size if world_size is None else world_size,
            backends=self._backends(),
            instances=not again,
            first=first,
        )
        self._used.update(self.settings.ready_made)
        profiler.step_num = number
        profiler.add_metadata("stage", stage)
        profiler.add_metadata("framework", self.category)
        profiler.start()
        self.profiler, self.stage, self._rank, self._stepped = profiler, stage, rank, False
        finalizer = weakref.finalize(self, profiler.close)
        finalizer.atexit = False  # then the profiler closes itself, and knows of what ended the program
        self._finalizer = finalizer.detach
        if again:
            self.store_error(
                ExporterError(
                    f"{', '.join(again)}: closed with an earlier run, so the run {stage!r} is written without; "
                    "give a function that makes an exporter of a directory"
                )
            )

    def step(self, unit: Unit = "step") -> None:
        """Ends a step or an epoch of the run. Does nothing if no run is open, or if the schedule counts the other unit."""
        if self.stage and self.profiler is not None and unit == self.settings.unit:
            self.profiler.step()
            self._stepped = True

    def enter(self, name: str, **arguments: object) -> None:
        """Begins a span, which `leave` ends; both are hooks of the same thread."""
        opened = span(name, category=self.category, **arguments)
        opened.__enter__()
        self._spans.append((name, opened))

    def exit(self, name: str) -> bool:
        """Ends the innermost open span of a name. Returns whether there was one."""
        for at in range(len(self._spans) - 1, -1, -1):
            if self._spans[at][0] == name:
                opened = self._spans.pop(at)[1]
                try:
                    opened.__exit__(None, None, None)
                except Exception as error:  # the step that ends with it counts all the same
                    self.store_error(error)
                return True
        return False

    def end_batch(self, stage: str, name: str) -> None:
        """Ends the span of a batch of a stage, and with it a step if the stage is a run of its own."""
        self.exit(name)
        if self.stage == stage:
            self.step()

    def end_stage(self, stage: str) -> None:
        """Ends a stage: the run, or the span in the run of a training."""
        if self.stage == stage:
            self.close()
        else:
            self.exit(stage)

    def counters(self, values: Mapping[str, Any]) -> None:
        """Records logged values as counters, by name: numbers, or arrays and tensors of any shape that hold one. One that cannot be a
        counter costs only itself, and is an error once per name."""
        for name, value in values.items():
            try:
                counter(name, _single_number(value), category=self.category)
            except Exception as error:
                if name not in self._not_numbers:
                    self._not_numbers.add(name)
                    shown = f"{shorten(repr(name), _SHOWN_NAME)} of type {type(value).__name__}"
                    self.store_error(TypeError(f"the logged value {shown} is no counter: {error_text(error)}"))

    @property
    def depth(self) -> int:
        """Number of open spans."""
        return len(self._spans)

    def close(self, error: BaseException | None = None) -> None:
        """Ends the run, if one is open, and keeps what went wrong in it.

        Args:
            error: what ended the loop; a window that is open is incomplete in any case.
        """
        while self._spans:
            self.exit(self._spans[-1][0])
        if not self.stage or self.profiler is None:
            return
        stage, self.stage = self.stage, ""
        if self._finalizer is not None:
            self._finalizer()
        self.profiler.__exit__(None if error is None else type(error), error, None)
        try:
            self.profiler.raise_errors()
        except ExceptionGroup as errors:
            for error in errors.exceptions:
                self.store_error(error)
        if not self._rank:
            self._log_results(stage, self.profiler)

    def _log_results(self, stage: str, profiler: Profiler) -> None:
        """Logs once where the results of a run are, and the verdict. As a warning: programs that configure no logging show no
        lower level."""
        stats = profiler.statistics()
        recorded = 0 if stats.pipeline is None else sum(stats.pipeline.windows.accepted.values())
        if not recorded:
            why = next(iter(profiler.diagnostics()), "") if self._stepped else "it ended before its first step did"
            if why and stage not in self._recorded_nothing:  # a program may evaluate after each epoch
                self._recorded_nothing.add(stage)
                log.warning("stepscope recorded nothing of %r: %s", stage, why)
            return
        path, of = profiler.output.path, ""
        if self._rank is not None:  # its own directory is one of those of all ranks
            path, of = path.parent, "of rank 0: "
        place = shlex.quote(str(path))
        lines = [f"stepscope recorded {stage!r}: `stepscope report {place}` shows it"]
        if recorded <= MAX_JUDGED_EVENTS:
            verdict, *more = _verdict(profiler)
            lines += [f"{of}{verdict}", *more]
        else:
            lines.append(f"`stepscope explain {place}` says what is slow")
        log.warning("%s", "\n  ".join(lines))

    def store_error(self, error: Exception) -> None:
        """Stores an error, and logs it if it is among the first."""
        before = len(self.raised.retained)
        self.raised.record("hook", error)
        for _, text in self.raised.retained[before:]:
            log.warning("tracing of %s goes on without: %s", self.category, text)

    def raise_errors(self) -> None:
        """Raises an `ExceptionGroup` of the stored errors, if there are any."""
        if self.raised.retained:
            count = human_count(self.raised.count, "error")
            raise ExceptionGroup(f"tracing of {self.category} kept {count}", self.raised.errors)


def _verdict(profiler: Profiler) -> list[str]:
    try:
        answer = profiler.explain()
    except (FormatError, ProfilerStateError, OSError) as error:  # such as a journal that found no room on its disk
        return [f"no verdict: {error_text(error)}"]
    if answer.refused:  # the profiler knows of its schedule and loop, the recording does not
        return [next(iter(profiler.diagnostics()), answer.refused)]
    if not answer.findings:
        return [answer.verdict]
    first = answer.findings[0]
    return [first.title, *([f"try: {first.action}"] if first.action else [])]


def _single_number(value: Any) -> float:
    """A number, or the only one in an array or tensor. Raises what its type raises if it is none, or holds several."""
    item: Any = getattr(value, "item", None)  # numpy deprecates float() of an array of shape (1,)
    number: Any = item() if callable(item) else value
    return float(number)


class TracingCallback:
    """The base of every callback: its loop, profiler and errors.

    A context manager, for frameworks that do not report exceptions to callbacks: leaving closes the run.
    """

    loop: Loop

    @property
    def profiler(self) -> Profiler | None:
        """The profiler of the run that is open, or was the last; `None` before the first."""
        return self.loop.profiler

    @property
    def errors(self) -> Sequence[Exception]:
        """Errors of tracing, which did not disturb training."""
        return tuple(self.loop.raised.errors)

    def raise_errors(self) -> None:
        """Raises the errors of tracing so far, if there are any.

        Raises:
            ExceptionGroup: of all of it.
        """
        self.loop.raise_errors()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.loop.close(error)
        except Exception as problem:
            self.loop.store_error(problem)


def stores_errors(hook: Hook) -> Hook:
    """Stores the exceptions of a hook of a `TracingCallback`: the traced loop never sees them."""

    @functools.wraps(hook)
    def run(self: TracingCallback, /, *args: Any, **kwargs: Any) -> None:
        try:
            hook(self, *args, **kwargs)
        except Exception as error:
            self.loop.store_error(error)

    return cast(Hook, run)

"""A capture: one recording from start to stop, with its directories and windows, and an estimate of another one's cost."""

from __future__ import annotations

import contextlib
import inspect
import logging
import resource
import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from stepscope.analysis.tables.allocations import CAPACITY
from stepscope.analysis.tables.flops import PEAK
from stepscope.backends.counters.process_memory import COUNTER, capacities, resident_bytes
from stepscope.backends.mindspore.backend import MindSporeBackend
from stepscope.build import trace
from stepscope.compat.mindspore.analysis.analysis import (
    Analysis,
    AnalysisRequest,
    WindowAnalysis,
    analyse_window,
    operators_of,
)
from stepscope.compat.mindspore.analysis.background import analyse_later, analysis_thread
from stepscope.compat.mindspore.options.schedule import TraceHandler
from stepscope.compat.mindspore.output_layout import (
    RAW,
    default_or_other,
    named_device,
    new_directory,
    windows_in,
    write_facts,
)
from stepscope.compat.mindspore.products.base import MEMORY
from stepscope.compat.mindspore.products.operators import OperatorTable
from stepscope.compat.mindspore.sources import backends as sources
from stepscope.compat.mindspore.sources.dataset_waits import DatasetWaits
from stepscope.exporters.journal import JournalExporter
from stepscope.runtime import _core
from stepscope.runtime.control.entry_points.environment import STEPS, directory_from_environment, options_in_effect
from stepscope.runtime.control.settings import Control
from stepscope.runtime.display.text_table import human_count
from stepscope.runtime.errors import ControlError, FormatError
from stepscope.runtime.export.run import Metadata
from stepscope.runtime.journal import segments
from stepscope.runtime.options import Options, Signal
from stepscope.runtime.overhead.budget import MIN_RECORDED_NS
from stepscope.runtime.overhead.meter import event_costs
from stepscope.runtime.profiler import Profiler
from stepscope.runtime.schedule.schedule import ScheduleFunction
from stepscope.runtime.windows.window import Window

if TYPE_CHECKING:
    from stepscope.compat.mindspore.recording.recording import Recording

log = logging.getLogger("stepscope")

MOST_TABLES = 256
"""Windows of a capture whose tables of operators stay in memory; those of earlier ones need raw data."""

CLOSE_SECONDS = 30.0
"""Seconds for which the end of a capture waits until the recorded events are on disk."""


EVENT_BYTES: Final = 8
"""Bytes that an event takes in the raw data, about, arguments not included (docs/segment-format.md)."""


class RecordingCost(NamedTuple):
    """The cost of one recording."""

    steps: int
    size: int
    """Bytes of raw data."""
    cost_ns: int
    """Time of the program's threads and processor time in the background."""
    recorded_ns: int
    """Duration of the recording."""


class CostEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """The mean cost of the recordings so far."""

    steps: int = 0
    """Steps that it is based on; 0 if nothing was recorded yet."""
    bytes_per_step: float = 0.0
    """Size of the raw data, which are deleted when the products are complete (`data_simplification`)."""
    ns_per_step: float = 0.0
    """Time of the program's threads and processor time of the background together."""
    fraction: float | None = None
    """That time as a share of the time recorded; `None` where that is too short."""
    ns_per_event: float = 0.0
    """Nanoseconds that a span takes of the thread that records it, measured on this machine."""

    @classmethod
    def by(cls, recordings: Sequence[RecordingCost]) -> CostEstimate:
        """The estimate for another recording with the same options."""
        steps, size, cost_ns, recorded_ns = map(sum, zip(RecordingCost(0, 0, 0, 0), *recordings, strict=True))
        return cls(
            steps=steps,
            bytes_per_step=size / steps if steps else 0.0,
            ns_per_step=cost_ns / steps if steps else 0.0,
            fraction=cost_ns / recorded_ns if recorded_ns >= MIN_RECORDED_NS else None,
            ns_per_event=event_costs().span,
        )

    def __str__(self) -> str:
        if not self.steps:
            return (
                f"nothing was recorded so far: about {self.ns_per_event:.0f} ns and {EVENT_BYTES} bytes for each event "
                "without arguments"
            )
        share = "" if self.fraction is None else f", {self.fraction:.2%} of the time"
        return (
            f"by {human_count(self.steps, 'step')} recorded so far: about {self.bytes_per_step:,.0f} bytes of raw data and "
            f"{self.ns_per_step / 1000:,.1f} us a step{share}"
        )


class CapturedWindow:
    """One finished window, and the products that were made of it."""

    def __init__(self, window: Window, directory: Path, journal: Path) -> None:
        self.window = window
        self.directory = directory
        self._journal = journal
        self._done: dict[tuple[bool, tuple[int, ...] | None], Future[WindowAnalysis]] = {}
        self._operators: OperatorTable | None = None
        self._caches_operators = True

    def analyse(self, request: AnalysisRequest) -> Future[WindowAnalysis]:
        """Makes the products; those that were made already in the same way are not made again."""
        key = request.pretty, request.steps
        if key not in self._done:
            self._done[key] = analyse_later(lambda: self._analyse(request))
        return self._done[key]

    def _analyse(self, request: AnalysisRequest) -> WindowAnalysis:
        done, table = analyse_window(self.raw, self.window, self.directory, request)
        if request.steps is None and self._caches_operators:
            self._operators = table
        return done

    @property
    def raw(self) -> Path:
        """The journal that has the window: its own copy if there is one."""
        own = self.directory / RAW / "window.journal"
        return own if segments.exists(own) else self._journal

    def moved(self, old: Path, new: Path, journal: Path | None) -> None:
        """Changes the name of a directory that was moved."""
        self.directory = new if self.directory == old else self.directory
        self._journal = journal or self._journal

    def forget_operators(self) -> None:
        """Removes its table of operators from memory."""
        self._caches_operators, self._operators = False, None

    @property
    def analysed(self) -> bool:
        """Whether at least one product was requested, and all are complete."""
        return bool(self._done) and all(
            future.done() and future.exception() is None and future.result().complete for future in self._done.values()
        )

    def operators(self, steps: tuple[int, ...] | None) -> OperatorTable:
        """Its operators. Blocks while they are read, unless the window was analysed. Raises `FileNotFoundError` if the
        raw data are needed and were deleted."""
        if steps is None and self._operators is not None:
            return self._operators
        journal = self.raw
        if not segments.exists(journal):
            raise FileNotFoundError(f"raw data of {self.directory} were deleted; record with data_simplification=False")
        index = self.window.index
        return analysis_thread.submit(lambda: operators_of(journal, index, steps)).result()


class CaptureSettings(NamedTuple):
    """Settings that all captures of a recording share."""

    schedule: ScheduleFunction | None
    handler: TraceHandler | None
    callback: Callable[..., Any] | None
    control: Control | None
    metadata: Metadata


class Capture:
    """Records with a profiler of stepscope, whose run is in the first window's directory.

    Raises:
        ProfilerIOException: if nothing can be written there.
        ControlError: if STEPSCOPE_OPTIONS cannot be followed. A `ValueError`.
    """

    def __init__(
        self, recording: Recording, settings: CaptureSettings, step: int, *, steps_are_fixed: bool = False
    ) -> None:
        """
        Args:
            recording: whose options it records.
            settings: those that all captures of the recording share.
            step: number of its first step.
            steps_are_fixed: whether the caller has chosen steps and place, so that STEPSCOPE_OPTIONS has no say in them.
        """
        self._recording, self._settings, self._options = recording, settings, recording.options
        self._steps_are_fixed = steps_are_fixed
        self.cut_reason = ""
        """The reason why the open window ends before its last step; to be set before `end()`."""
        self._target = recording.target
        self._limits = sources.limits(self._options.requested(), self._target)
        """Requested data that cannot be recorded, in words."""
        self._estimate = recording.estimate
        handler = settings.handler
        self._worker = None if handler is None else handler.worker_name
        self._named_device = named_device(self._options, self._target.device)
        named = None if handler is None else handler.dir_name
        base = default_or_other(self._options.output_path) if named is None else named
        self._base = base if steps_are_fixed else directory_from_environment(base)
        """Directory below which the directories of windows are made."""
        self.directory = new_directory(self._base, self._worker, self._named_device)
        self.windows: list[CapturedWindow] = []
        self._failed: dict[int, str] = {}
        """Windows whose directory could not be written, with the reasons."""
        self.ended = False
        self._stepped = False
        self._page = resource.getpagesize() if self._options.memory else 0
        self.cost: RecordingCost | None = None
        """Its cost; set at its end, if steps were recorded."""
        waits = self._options.data_process and "mindspore" in self._target.frameworks
        self._dataset_waits = DatasetWaits() if waits else None
        self._journal: Path | None = None
        self.profiler = self._make(step)

    def _make(self, step: int) -> Profiler:
        settings = self._settings
        loader: tuple[Signal, ...] = ("loader",) if self._options.data_process else ()
        memory: tuple[Signal, ...] = ("steps",) if self._options.memory else ()
        options = Options(close_timeout=CLOSE_SECONDS, signals=memory + loader)
        facts: dict[str, Any] = {} if self._options.peak_flops is None else {PEAK: self._options.peak_flops}
        facts |= {CAPACITY: capacities()} if self._options.memory else {}
        try:
            backends = sources.choose(self._options, self._target)
            self._asynchronous = [backend for backend in backends if isinstance(backend, MindSporeBackend)]
            made = trace(
                schedule=settings.schedule,
                backends=backends,
                # Given here, as products are made of it: the environment may turn off those that nobody needs.
                exporters=[JournalExporter.of(options_in_effect(options))],
                on_trace_ready=self._ready,
                name="mindspore",
                output_dir=self.directory / RAW,
                metadata={**settings.metadata.snapshot(), **facts},
                start=False,
                overhead_budget=self._options.overhead_budget,
                options=options,
                control=settings.control,
                fixed=("output_dir", *STEPS) if self._steps_are_fixed else ("output_dir",),
            )
            if made.keep_last is not None:
                raise ControlError(
                    f"STEPSCOPE_OPTIONS.keep_last={made.keep_last.steps}: windows of stepscope.mindspore end with steps, and a "
                    "flight recorder's when somebody saves them; ask by `schedule` or `window`, or use stepscope.trace()"
                )
        except BaseException:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise
        made.step_num = step
        return made

    def begin(self) -> None:
        """Starts recording. Raises what `stepscope.Profiler.start` does, after which nothing is left."""
        try:
            # Written now as well, so that an analysis after a crash knows how it was recorded.
            try:
                self._write_facts(self.directory, self._window_facts(0))
            except OSError as error:  # the disk is full, perhaps for a moment only: they are written at the end again
                log.warning("%s: cannot write how it is recorded: %s", self.directory, error.strerror)
            self.profiler.start()
            self._read_memory()
            if self._dataset_waits is not None:
                self._dataset_waits.begin()
        except BaseException:
            try:
                self.profiler.close()  # it may record already, into the directory
            finally:
                shutil.rmtree(self.directory, ignore_errors=True)
            raise

    def step(self) -> None:
        """Ends a step. The operators that it launched are part of it, and a reading of the memory, if that is wanted."""
        self._wait_for_operators()
        self._read_memory()
        self._stepped = True
        self.profiler.step()

    def end(self) -> None:
        """Ends recording, and waits until the events are on disk."""
        if self.ended:
            return
        self.ended = True
        problem = "" if self._dataset_waits is None else self._dataset_waits.end()
        if problem:
            log.warning("data_process recorded nothing: %s", problem)
        self._wait_for_operators()
        if not self._stepped:  # else what the last step() began is a step only if the program did something in it
            self._read_memory()
        self.profiler.stop()
        self.profiler.close()
        pipeline = self.profiler.statistics().pipeline
        steps = sum(len(window.window.steps) for window in self.windows)
        if pipeline is not None and steps:
            overhead = pipeline.overhead
            size = segments.journal_bytes(self.journal)
            cost_ns = overhead.training_ns + overhead.background_ns
            self.cost = RecordingCost(steps, size, cost_ns, overhead.recorded_ns)

    def _wait_for_operators(self) -> None:
        for backend in self._asynchronous:
            backend.wait_for_operators()

    def _read_memory(self) -> None:
        """Reads the memory once more, where it is wanted: a step, or all of a capture, may be over before the thread reads it."""
        if self._page and self.profiler.current_action.records:
            _core.counter(COUNTER, resident_bytes(self._page), category=MEMORY)

    @property
    def journal(self) -> Path:
        """The run's journal."""
        return self._journal or self.profiler.output.path / "journal"

    def request(self, *, pretty: bool = False, steps: tuple[int, ...] | None = None) -> AnalysisRequest:
        """Options for the analysis of its windows."""
        return AnalysisRequest(options=self._options, target=self._target, pretty=pretty, steps=steps)

    def simplify(self) -> Future[None]:
        """Deletes raw data once everything that is asked for by then is made, if the options say so."""
        return analyse_later(self._simplify)

    def _simplify(self) -> None:
        if not (self._options.data_simplification and self.windows):
            return
        if all(each.analysed for each in self.windows) and not self.missing():
            shutil.rmtree(self.directory / RAW, ignore_errors=True)

    def missing(self) -> tuple[str, ...]:
        """Windows that were recorded and that this capture cannot analyse: a sentence for each. Their raw data are kept."""
        if not segments.exists(self.journal):  # deleted, as all was analysed
            return ()
        try:
            recorded = windows_in(self.journal)
        except (FormatError, OSError) as error:
            return (f"the windows of {self.journal} cannot be listed: {error}; it stays where it is",)
        delivered = {window.window.index for window in self.windows}
        return tuple(
            f"window {index}: {self._failed.get(index, 'it was not delivered before the recording was closed')}; its raw data "
            f"stay in {self.journal.parent}: `stepscope analyse {self.directory}` makes its products"
            for index in sorted((recorded | self._failed.keys()) - delivered)
        )

    def move(self, base: Path) -> None:
        """Moves its directories below another one; after the end, before any analysis."""
        for old in self._directories():
            if old.parent == base.resolve():
                continue
            base.mkdir(parents=True, exist_ok=True)
            new = base.resolve() / old.name
            old.rename(new)
            with contextlib.suppress(OSError):  # it has other files
                old.parent.rmdir()
            if self.directory == old:
                self._journal = new / self.journal.relative_to(old)
                self.directory = new
            for window in self.windows:
                window.moved(old, new, self._journal)

    def _directories(self) -> Iterable[Path]:
        return dict.fromkeys((self.directory, *(window.directory for window in self.windows)))

    def discard(self) -> None:
        """Ends recording and deletes the files: it was begun too early."""
        self.end()
        for directory in self._directories():
            shutil.rmtree(directory, ignore_errors=True)
        self.windows.clear()

    def _window_facts(self, window: int) -> dict[str, Any]:
        return {
            "run": self.directory.name,
            "window": window,
            "diagnostics": [*self._limits, *self._target.notes],
            "estimate": msgspec.structs.asdict(self._estimate),
            "options": msgspec.structs.asdict(self._options),
        }

    def _write_facts(self, directory: Path, about: dict[str, Any]) -> None:
        metadata = self._settings.metadata.snapshot()
        write_facts(directory, self._target, about, metadata, strategy=self._options.parallel_strategy)

    def _ready(self, window: Window) -> None:
        """Is called with each finished window, on a worker thread."""
        try:
            captured = self._add_window(window)
        except BaseException as error:
            self._failed[window.index] = f"its directory could not be written: {type(error).__name__}: {error}"
            raise
        settings = self._settings
        if settings.handler is not None and settings.handler.analyse_flag:
            captured.analyse(self.request())
        if settings.callback is not None:
            _call(settings.callback, self._recording)

    def _add_window(self, window: Window) -> CapturedWindow:
        """Makes its directory, and writes its facts and, where raw data stay, its journal."""
        first = not self.windows
        directory = self.directory if first else new_directory(self._base, self._worker, self._named_device)
        cut = self.cut_reason
        about = {
            **self._window_facts(window.index),
            "profiling_start_time": window.wall_start_ns,
            "profiling_time(ms)": (window.end_ns - window.start_ns) / 1e6,
            "steps": [step.number for step in window.steps],
            "complete": window.complete and not cut,
            "diagnostics": [*([f"cut: {cut}"] if cut else []), *window.diagnostics, *self._limits, *self._target.notes],
        }
        self._write_facts(directory, about)
        if not first and not self._options.data_simplification:
            (directory / RAW).mkdir()
            window.export(directory / RAW / "window.journal")
        captured = CapturedWindow(window, directory, self.journal)
        self.windows.append(captured)
        if len(self.windows) > MOST_TABLES:
            self.windows[-1 - MOST_TABLES].forget_operators()
        return captured


def analyse_captures(
    captures: Sequence[Capture], *, pretty: bool = False, steps: tuple[int, ...] | None = None, waits: bool = True
) -> Analysis | None:
    """Makes the products of captures that have ended. Returns what was made, or `None` at once if it does not wait."""
    made = [
        (window, window.analyse(capture.request(pretty=pretty, steps=steps)))
        for capture in captures
        for window in capture.windows
    ]
    missing = [analyse_later(capture.missing) for capture in captures]
    ends = [capture.simplify() for capture in captures]

    def whole() -> Analysis:
        done: list[WindowAnalysis] = []
        failed: list[str] = []
        for window, each in made:
            if error := each.exception():
                failed.append(
                    f"window {window.window.index} of {window.directory} cannot be analysed: {type(error).__name__}: {error}"
                )
            else:
                done.append(each.result())
        failed += [reason for each in missing for reason in each.result()]
        return Analysis.of(done, steps, failed=failed)

    if not waits:
        analyse_later(whole)
        return None
    for end in ends:
        end.result()
    return whole()


def _call(callback: Callable[..., Any], owner: object) -> None:
    """Calls the program's `on_trace_ready` with the profiler, or without arguments if it has no parameters."""
    try:
        has_parameters = bool(inspect.signature(callback).parameters)
    except (TypeError, ValueError):  # a builtin
        has_parameters = True
    callback(owner) if has_parameters else callback()

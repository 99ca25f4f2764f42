"""Reporting: the methods of a profiler that return summaries, statistics, diagnostics and errors."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from stepscope.runtime.accounting.error_log import error_text
from stepscope.runtime.analysed import ShownText, as_html
from stepscope.runtime.display.text_table import human_count
from stepscope.runtime.errors import BackendError, ExporterError, InternalError, ScheduleError, TriggerError
from stepscope.runtime.events import clock
from stepscope.runtime.flight.settings import FlightRecorder
from stepscope.runtime.lifecycle.closing import CloseProcedure
from stepscope.runtime.lifecycle.output_directory import Output
from stepscope.runtime.loop.pipeline import Pipeline
from stepscope.runtime.loop.pipeline_statistics import PipelineStatistics
from stepscope.runtime.observers import observing
from stepscope.runtime.options import Signal
from stepscope.runtime.recording.recorder_accounts import RecorderAccounts
from stepscope.runtime.report.audit import audit
from stepscope.runtime.report.notebook import progress
from stepscope.runtime.report.profiler_statistics import ProfilerStatistics
from stepscope.runtime.report.run_report import RunReport
from stepscope.runtime.schedule.diagnostics import explain
from stepscope.runtime.schedule.schedule import ScheduleFunction
from stepscope.runtime.steps.saving import Saving
from stepscope.runtime.threads.greenlets import replaced_note, threads_replaced_by
from stepscope.runtime.windows.summary import Summary

if TYPE_CHECKING:
    from stepscope.runtime.control.controller import Controller


class Reporting(Saving):
    """The part of a profiler that only reads. Any thread may call its methods."""

    def __init__(self, name: str, schedule: ScheduleFunction, keep_last: FlightRecorder | None, output: Output) -> None:
        super().__init__(name, schedule, keep_last)
        self.output = output
        self._accounts: RecorderAccounts | None = None
        self._anchor: clock.ClockAnchor | None = None
        self._ending: CloseProcedure | None = None
        self._signals: tuple[Signal, ...] = ()
        """Signals that are recorded (`Options.signals`)."""
        self._without_effect = ""
        """A note on options of rings that have no effect, as the rings exist already."""

    def _repr_html_(self) -> str:
        """For notebooks: the state, and the first rows of the table."""
        return as_html(self)

    @property
    def control(self) -> Controller | None:
        """The controller that receives requests for windows; `None` without one."""
        return None

    def summary(
        self, sort_by: str = "self", top: int | None = 20, format: Literal["table", "markdown", "json"] = "table"
    ) -> str:
        """Returns statistics of the steps, the parts of a step, which add up to it, and a table of spans: one row for each name
        and category, with separate rows for other processes.

        Of an open window, it includes the events that have arrived; it does not wait. Percentages refer to the time of the
        steps, or without steps to the recorded time. Self time excludes child spans. Steps have no self time: it belongs to
        the spans inside of them.

        Args:
            sort_by: a column: `self`, `total`, `count`, `min`, `max`, `mean`, `p50`, `p95`, `p99`, `name` or `category`.
            top: rows to show; `None` for all.
            format: `table` for a terminal, `markdown` with full names, `json` in ns.

        Raises:
            ValueError: if a value is not one of these.
            TypeError: if `top` is no whole number.
        """
        table = self.output.total()
        text = table.render(sort_by, top, format)
        return text if format != "table" else ShownText(text, lambda: table.cut(sort_by, top))

    def aggregates(self) -> Summary:
        """Returns the same as data."""
        return self.output.total()

    def saved(self) -> tuple[Path, ...]:
        """Returns the complete files of windows that `keep_last` saved and did not delete, the oldest first.

        Each is a journal: `stepscope convert` makes a trace of it. Empty without `keep_last` or without a journal.
        """
        return self.output.saved()

    def progress(self) -> AbstractContextManager[None]:
        """In a notebook, shows the progress in the cell during a `with` block: steps, their rate, and dropped events.

        A separate thread updates it twice a second. Without a kernel of IPython it does nothing.
        """
        return progress(self.statistics)

    def statistics(self) -> ProfilerStatistics:
        """Returns an immutable snapshot of every stage."""
        flight = None if self._pipeline is None else self._pipeline.flight
        return ProfilerStatistics(
            state=self._state,
            steps=self._steps_before + (self._step - self._first_step if self._live else 0),
            given_up=self._ending is not None and self._ending.given_up,
            steps_ignored=self._ignored,
            windows=self._windows if flight is None else flight.windows.statistics().opened,
            windows_left_out=self._skipped_windows,
            pauses_not_drawn=self._pauses_not_drawn,
            transitions=self._transitions.statistics(),
            recorder=self._accounts.statistics() if self._accounts else None,
            pipeline=self._pipeline.statistics() if self._pipeline else None,
        )

    def diagnostics(self) -> tuple[str, ...]:
        """Returns reasons why nothing, or less than the schedule wanted, was recorded; empty if all is well."""
        notes: tuple[str, ...] = (
            () if self.schedule_error is None else (f"the schedule failed: {error_text(self.schedule_error)}",)
        )
        if self._state == "inert":
            return (*notes, f"inert: {self._inert_because}")
        if self._state in ("stopped", "closed"):
            notes += self._explain()
        notes += (self._without_effect,) if self._without_effect else ()
        notes += observing.notes(self._signals)
        if self._pipeline is not None:
            notes += self._replaced_notes(self._pipeline.statistics())
            notes += tuple(self._pipeline.notes)
            notes += tuple(_error_notes(self._pipeline))
            notes += self._flight_notes(self._pipeline)
        if self._ending is not None and self._ending.given_up:
            notes += (self._ending.note,)
        notes += self._armed_notes()
        notes += () if self.control is None else tuple(f"control: {note}" for note in self.control.notes)
        notes += tuple(self._accounts.statistics().notes()) if self._accounts else ()
        bound = self._bound()
        notes += tuple(source.refused for source in bound if source.refused)
        if self._state != "closed":
            notes += tuple(note for source in bound if (note := source.waiting_note()))
        if self._ignored:
            notes += (f"steps ignored: step() was called {self._ignored} times while the profiler was not running",)
        return notes

    def _replaced_notes(self, pipeline: PipelineStatistics) -> tuple[str, ...]:
        """If exporters failed and a library has replaced the threads: a note that this may be the reason."""
        library = threads_replaced_by()
        given_up = self._ending is not None and self._ending.given_up
        failed = given_up or any(output.errors for output in pipeline.exporters)
        return (replaced_note(library),) if library and failed else ()

    def audit(self) -> tuple[str, ...]:
        """Returns a sentence for each account of this run that does not balance.

        The loop counts meanwhile, so an account that seems wrong is checked again.
        """
        found: tuple[str, ...] = ()
        for _ in range(5):
            found = audit(self.statistics())
            if not found:
                break
            time.sleep(0.005)
        return found

    def report(self) -> RunReport:
        """Returns the trust report: recorded and dropped events, clocks, costs, and reasons for anything that is missing."""
        reports = {} if self._pipeline is None else {source.name: source.report() for source in self._pipeline.sources}
        return RunReport(
            name=self.name,
            statistics=self.statistics(),
            imbalances=self.audit(),
            output_dir=str(self.output.path),
            saved=tuple(map(str, self.saved())),
            anchor=self._anchor,
            anchor_now=clock.ClockAnchor.read(),
            backends=reports,
            diagnostics=self.diagnostics(),
        )

    def raise_errors(self) -> None:
        """Raises the exceptions of backends, exporters, triggers, callbacks and the schedule so far, if there are any.

        Raises:
            ExceptionGroup: of `BackendError`, `ExporterError` and `TriggerError`, and of `InternalError` for faults of
                stepscope itself, each with the original as its cause.
        """
        errors: list[Exception] = [*self._calls.raised.errors, *_pipeline_errors(self._pipeline)]
        errors += _schedule_errors(self.schedule_error)
        if errors:
            raise ExceptionGroup(f"profiler {self.name!r} kept {human_count(len(errors), 'error')}", errors)

    def _explain(self) -> tuple[str, ...]:
        """Returns reasons why less was recorded than the schedule wanted."""
        steps, open_steps, recorded = self._step - self._first_step, self._open_steps, self._recorded_steps
        if self._pipeline is not None:
            open_steps = open_steps or self._pipeline.ending.cut_steps
        return explain(self.schedule, steps, recorded=recorded, open_steps=open_steps, first=max(self._first_step, 0))


def _pipeline_errors(pipeline: Pipeline | None) -> list[Exception]:
    """Exceptions of backends, triggers, exporters and callbacks, and internal errors, each with its cause."""
    errors: list[Exception] = []
    if pipeline is None:
        return errors
    for source in pipeline.sources:
        errors += [_wrapped(BackendError(f"backend {source.name!r}: {text}"), e) for e, text in source.raised.retained]
    for error, text in pipeline.flight.watch.raised.retained if pipeline.flight else ():
        errors.append(_wrapped(TriggerError(f"a trigger failed: {text}"), error))
    for worker in pipeline.workers:
        errors += [
            _wrapped(ExporterError(f"exporter {worker.name!r}: {text}"), e) for e, text in worker.raised.retained
        ]
    for fault, text in pipeline.faults.raised.retained:
        errors.append(_wrapped(InternalError(f"a fault of stepscope: {text}; please report it"), fault))
    return errors


def _schedule_errors(error: BaseException | None) -> list[Exception]:
    """The exception of the schedule; a `SystemExit` and the like as the cause of a `ScheduleError`."""
    if error is None:
        return []
    if isinstance(error, Exception):
        return [error]
    return [_wrapped(ScheduleError(f"the schedule failed: {error_text(error)}"), error)]


def _error_notes(pipeline: Pipeline) -> Iterator[str]:
    """A sentence for each backend and exporter that failed. The flight recorder reports its triggers itself."""
    for source in pipeline.sources:
        yield from source.blocked_notes
        if source.raised.count:
            count = human_count(source.raised.count, "time")
            yield f"backend {source.name!r} failed {count}, first in {source.raised.first}; raise_errors() raises it"
    for worker in pipeline.workers:
        statistics = worker.statistics()
        if statistics.errors:
            count = human_count(statistics.errors, "time")
            yield f"exporter {worker.name!r} failed {count}, first by {statistics.first_error}; raise_errors() raises it"
    faults = pipeline.faults.raised
    if faults.count:
        count = human_count(faults.count, "fault")
        yield (
            f"{count} of stepscope, first in {faults.first}: something of what was recorded may be missing; please "
            "report what raise_errors() raises"
        )


def _wrapped(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error

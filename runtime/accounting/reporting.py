"""Reporting: what a profiler says of itself, its tables and its accounts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from stepscope.runtime.accounting.audit import audit
from stepscope.runtime.accounting.error_log import error_text
from stepscope.runtime.accounting.run_report import RunReport
from stepscope.runtime.accounting.statistics import PipelineStatistics, ProfilerStatistics
from stepscope.runtime.analysed import ShownText, as_html
from stepscope.runtime.annotations.greenlets import replaced_note, threads_replaced_by
from stepscope.runtime.display.notebook import progress
from stepscope.runtime.display.text_table import human_count
from stepscope.runtime.errors import BackendError, ExporterError, InternalError, ScheduleError, TriggerError
from stepscope.runtime.events import clock
from stepscope.runtime.export.output_directory import Output
from stepscope.runtime.flight.saving import Saving
from stepscope.runtime.flight.settings import FlightRecorder
from stepscope.runtime.lifecycle.closing import CloseProcedure
from stepscope.runtime.loop.pipeline import Pipeline
from stepscope.runtime.observers import observing
from stepscope.runtime.options import Signal
from stepscope.runtime.recording.recorder_accounts import RecorderAccounts
from stepscope.runtime.schedule.diagnostics import explain
from stepscope.runtime.schedule.schedule import ScheduleFunction
from stepscope.runtime.windows.summary import Summary

if TYPE_CHECKING:
    from stepscope.runtime.control.controller import Controller


class Reporting(Saving):
    """The half of a profiler that is asked; it changes nothing, and may be called from any thread."""

    def __init__(self, name: str, schedule: ScheduleFunction, keep_last: FlightRecorder | None, output: Output) -> None:
        super().__init__(name, schedule, keep_last)
        self.output = output
        self._accounts: RecorderAccounts | None = None
        self._anchor: clock.ClockAnchor | None = None
        self._ending: CloseProcedure | None = None
        self._signals: tuple[Signal, ...] = ()
        """What is recorded beside the program's own events."""
        self._without_effect = ""
        """What the options ask of rings in vain."""

    def _repr_html_(self) -> str:
        """For notebooks: how far it is, and the first rows of the table."""
        return as_html(self)

    @property
    def control(self) -> Controller | None:
        """What takes requests for windows from outside; `None` if nothing does."""
        return None

    def summary(
        self, sort_by: str = "self", top: int | None = 20, format: Literal["table", "markdown", "json"] = "table"
    ) -> str:
        """What windows hold: statistics of the steps, the parts of a step, which add up to it, and a table with the spans of one
        name and category in a row, those of other processes apart.

        A window that is open is shown as far as its events have come; nothing is waited for. Percentages are of the time of the
        steps; without steps, of what was recorded. Self time is what was not spent in child spans. Steps have none: they are
        drawn around what the program does, whose rows have that time.

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
        """The same as data."""
        return self.output.total()

    def saved(self) -> tuple[Path, ...]:
        """Files of the windows that `keep_last` has saved and kept, the oldest first, as far as they are complete.

        Each is a journal: `stepscope convert` makes a trace of it. Empty without `keep_last`, and without a journal.
        """
        return self.output.saved()

    def progress(self) -> AbstractContextManager[None]:
        """In a notebook, shows in the cell how far the run is while a `with` block lasts: steps, their rate, what was dropped.

        A thread of its own updates it twice a second; the loop waits for nothing. Without a kernel of IPython it does nothing.
        """
        return progress(self.statistics)

    def statistics(self) -> ProfilerStatistics:
        """A frozen snapshot of every stage."""
        flight = None if self._pipeline is None else self._pipeline.flight
        return ProfilerStatistics(
            state=self._state,
            steps=self._steps_before + (self._step - self._first_step if self._live else 0),
            given_up=self._ending is not None and self._ending.given_up,
            steps_ignored=self._ignored,
            windows=self._windows if flight is None else flight.windows.statistics().opened,
            windows_left_out=self._windows_left_out,
            pauses_untold=self._pauses_untold,
            transitions=self._took.statistics(),
            recorder=self._accounts.statistics() if self._accounts else None,
            pipeline=self._pipeline.statistics() if self._pipeline else None,
        )

    def diagnostics(self) -> tuple[str, ...]:
        """Why nothing, or less than the schedule wanted, was recorded; empty if all is well."""
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
            notes += tuple(error_notes(self._pipeline))
            notes += self._flight_notes(self._pipeline)
        if self._ending is not None and self._ending.given_up:
            notes += (self._ending.note,)
        notes += self._armed_notes()
        notes += () if self.control is None else tuple(f"control: {note}" for note in self.control.notes)
        notes += tuple(self._accounts.statistics().notes()) if self._accounts else ()
        bound = self._bound()
        notes += tuple(source.refused for source in bound if source.refused)
        if self._state != "closed":
            notes += tuple(note for source in bound if (note := source.unsettled()))
        if self._ignored:
            notes += (f"steps ignored: step() was called {self._ignored} times while the profiler was not running",)
        return notes

    def _replaced_notes(self, pipeline: PipelineStatistics) -> tuple[str, ...]:
        """A note that a library which has replaced the threads may be why exporters failed."""
        library = threads_replaced_by()
        given_up = self._ending is not None and self._ending.given_up
        failed = given_up or any(output.errors for output in pipeline.exporters)
        return (replaced_note(library),) if library and failed else ()

    def audit(self) -> tuple[str, ...]:
        """Every account of this run that does not balance, in words; empty if all do.

        An account that seems wrong is looked at again: the loop goes on counting meanwhile.
        """
        found: tuple[str, ...] = ()
        for _ in range(5):
            found = audit(self.statistics())
            if not found:
                break
            time.sleep(0.005)
        return found

    def report(self) -> RunReport:
        """What was recorded, what was dropped, by which clock, at what cost, and what could not be had."""
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
        """Raises what backends, exporters, triggers, callbacks and the schedule raised so far, if anything.

        Raises:
            ExceptionGroup: of `BackendError`, `ExporterError` and `TriggerError`, and of `InternalError` for faults of
                stepscope itself, each with the original as its cause.
        """
        errors: list[Exception] = [*self._calls.raised.errors, *kept_errors(self._pipeline)]
        errors += schedule_errors(self.schedule_error)
        if errors:
            raise ExceptionGroup(f"profiler {self.name!r} kept {human_count(len(errors), 'error')}", errors)

    def _explain(self) -> tuple[str, ...]:
        """Why less was recorded than the schedule wanted, by what is known of the run's last step."""
        steps, open_steps, recorded = self._step - self._first_step, self._open_steps, self._recorded_steps
        if self._pipeline is not None:
            open_steps = open_steps or self._pipeline.ending.cut_steps
        return explain(self.schedule, steps, recorded=recorded, open_steps=open_steps, first=max(self._first_step, 0))


def kept_errors(pipeline: Pipeline | None) -> list[Exception]:
    """What backends, triggers, exporters and callbacks raised so far, and faults of ours, each with its cause."""
    errors: list[Exception] = []
    if pipeline is None:
        return errors
    for source in pipeline.sources:
        errors += [_wrapped(BackendError(f"backend {source.name!r}: {text}"), e) for e, text in source.raised.kept]
    for error, text in pipeline.flight.watch.raised.kept if pipeline.flight else ():
        errors.append(_wrapped(TriggerError(f"a trigger failed: {text}"), error))
    for worker in pipeline.workers:
        errors += [_wrapped(ExporterError(f"exporter {worker.name!r}: {text}"), e) for e, text in worker.raised.kept]
    for fault, text in pipeline.faults.raised.kept:
        errors.append(_wrapped(InternalError(f"a fault of stepscope: {text}; please report it"), fault))
    return errors


def schedule_errors(error: BaseException | None) -> list[Exception]:
    """What the schedule raised: itself, or as the cause of an error that is no request to exit."""
    if error is None or isinstance(error, Exception):
        return [] if error is None else [error]
    return [_wrapped(ScheduleError(f"the schedule failed: {error_text(error)}"), error)]


def error_notes(pipeline: Pipeline | None) -> Iterator[str]:
    """The same in words, a sentence for each that failed; those of triggers are with what they saved."""
    if pipeline is None:
        return
    for source in pipeline.sources:
        yield from source.blocked_notes
        if source.raised.count:
            count = human_count(source.raised.count, "time")
            yield f"backend {source.name!r} failed {count}, first in {source.raised.first}; raise_errors() raises it"
    for worker in pipeline.workers:
        said = worker.statistics()
        if said.errors:
            count = human_count(said.errors, "time")
            yield f"exporter {worker.name!r} failed {count}, first by {said.first_error}; raise_errors() raises it"
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

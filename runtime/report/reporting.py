"""Reporting: summaries, statistics, diagnostics and errors of a profiler."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import msgspec

from stepscope.runtime import analysed
from stepscope.runtime.accounting.error_log import error_text
from stepscope.runtime.analysed import ShownText
from stepscope.runtime.display.text_table import human_count
from stepscope.runtime.errors import (
    BackendError,
    ExporterError,
    InternalError,
    ProfilerStateError,
    ScheduleError,
    TriggerError,
)
from stepscope.runtime.events import clock
from stepscope.runtime.journal import segments
from stepscope.runtime.lifecycle.lifecycle import Lifecycle
from stepscope.runtime.loop.pipeline import Pipeline
from stepscope.runtime.observers import observing
from stepscope.runtime.report.profiler_statistics import ProfilerStatistics, audit
from stepscope.runtime.report.run_report import RunReport
from stepscope.runtime.steps.arming import Arming

if TYPE_CHECKING:
    from stepscope.runtime.analysed import Answer


class Reporting:
    """Reads what a profiler's other parts know. Any thread may call. `Profiler` documents the methods."""

    def __init__(self, life: Lifecycle, arming: Arming) -> None:
        """Args: what has the run and the steps; what has the requested windows."""
        self._life, self._steps, self._facts = life, life.steps, life.facts
        self._arming = arming

    @property
    def _pipeline(self) -> Pipeline | None:
        return self._steps.pipeline

    def summary(self, sort_by: str, top: int | None, format: Literal["table", "markdown", "json"]) -> str:
        table = self._facts.output.total()
        text = table.render(sort_by, top, format)
        return text if format != "table" else ShownText(text, lambda: table.cut(sort_by, top))

    def statistics(self) -> ProfilerStatistics:
        steps, opened, pipeline = self._steps, self._life.opened, self._pipeline
        flight = None if pipeline is None else pipeline.flight
        return ProfilerStatistics(
            state=steps.state,
            steps=steps.steps_begun,
            timed_out=self._life.timed_out,
            steps_ignored=steps.ignored,
            windows=steps.windows_begun if flight is None else flight.windows.statistics().opened,
            windows_left_out=steps.skipped_windows,
            pauses_not_drawn=steps.pauses_not_drawn,
            transitions=msgspec.structs.replace(steps.transitions),
            recorder=None if opened is None else opened.accounts.statistics(),
            pipeline=None if pipeline is None else pipeline.statistics(),
        )

    def diagnostics(self) -> tuple[str, ...]:
        """Reasons why nothing, or less than the schedule wanted, was recorded."""
        steps, life = self._steps, self._life
        error, state = steps.schedule_error, steps.state
        notes: tuple[str, ...] = () if error is None else (f"the schedule failed: {error_text(error)}",)
        if state == "inert":
            return (*notes, f"inert: {steps.inert_because}")
        if state in ("stopped", "closed"):
            notes += steps.why_less()
        if life.opened is not None and life.opened.without_effect:
            notes += (life.opened.without_effect,)
        notes += observing.notes(life.setup.options.signals)
        if self._pipeline is not None:
            notes += tuple(self._pipeline.notes)
            notes += tuple(_error_notes(self._pipeline))
            notes += self._flight_notes(self._pipeline)
        if life.ending is not None and life.ending.timed_out:
            notes += (life.ending.note,)
        notes += self._arming.notes()
        notes += () if life.control is None else tuple(f"control: {note}" for note in life.control.notes)
        notes += () if life.opened is None else tuple(life.opened.accounts.statistics().notes())
        bound = steps.bound()
        notes += tuple(source.refused for source in bound if source.refused)
        if state != "closed":
            notes += tuple(note for source in bound if (note := source.waiting_note()))
        if steps.ignored:
            notes += (f"steps ignored: step() was called {steps.ignored} times while the profiler was not running",)
        return notes

    def _flight_notes(self, pipeline: Pipeline) -> tuple[str, ...]:
        keep_last = self._life.setup.keep_last
        if keep_last is None or pipeline.flight is None:
            return ()
        notes = tuple(pipeline.flight.statistics().notes(keep_last))
        if self._steps.state in ("stopped", "closed") and not self._steps.stepped:
            notes += ("never stepped: step() was never called, so what is kept is bounded by bytes only",)
        return notes

    def audit(self) -> tuple[str, ...]:
        """A sentence for each account that does not balance. The loop counts meanwhile, so an account that seems wrong is checked
        again."""
        found: tuple[str, ...] = ()
        for _ in range(5):
            found = audit(self.statistics())
            if not found:
                break
            time.sleep(0.005)
        return found

    def report(self) -> RunReport:
        opened, output = self._life.opened, self._facts.output
        sources = [] if opened is None else opened.pipeline.sources
        return RunReport(
            name=self._facts.name,
            statistics=self.statistics(),
            imbalances=self.audit(),
            output_dir=str(output.path),
            saved=tuple(map(str, output.saved())),
            anchor=None if opened is None else opened.anchor,
            anchor_now=clock.ClockAnchor.read(),
            backends={source.name: source.report() for source in sources},
            diagnostics=self.diagnostics(),
        )

    def raise_errors(self) -> None:
        """Raises what backends, exporters, triggers, callbacks and the schedule have raised."""
        errors: list[Exception] = [
            *self._steps.calls.raised.errors,
            *_errors(self._pipeline, self._steps.schedule_error),
        ]
        if errors:
            raise ExceptionGroup(f"profiler {self._facts.name!r} kept {human_count(len(errors), 'error')}", errors)

    def explain(self) -> Answer:
        state, output = self._steps.state, self._facts.output
        if state == "new" or analysed.by is None:
            raise ProfilerStateError(
                f"explain() of profiler {self._facts.name!r}: it was not started; call start() first"
            )
        if state == "inert":
            return analysed.by.refused(output.path, f"Nothing was recorded: {self._steps.inert_because}.")
        self._life.flush()
        path = output.journal_path()
        if path is None or not segments.exists(path):
            why = (
                self.diagnostics()
                if self._life.setup.keep_last is None
                else ("profiler.save() keeps the last steps, as triggers do",)
            )
            return analysed.by.refused(output.path, "; ".join(("Nothing was written", *why)) + ".")
        return analysed.by.explain(path)


def _errors(pipeline: Pipeline | None, of_schedule: BaseException | None) -> list[Exception]:
    """Exceptions of backends, triggers, exporters, callbacks and the schedule, and internal errors, each with its cause."""
    errors: list[Exception] = []
    if pipeline is not None:
        for source in pipeline.sources:
            for error, text in source.raised.retained:
                errors.append(_wrapped(BackendError(f"backend {source.name!r}: {text}"), error))
        for error, text in pipeline.flight.watch.raised.retained if pipeline.flight else ():
            errors.append(_wrapped(TriggerError(f"a trigger failed: {text}"), error))
        for worker in pipeline.workers:
            for error, text in worker.raised.retained:
                errors.append(_wrapped(ExporterError(f"exporter {worker.name!r}: {text}"), error))
        for error, text in pipeline.faults.raised.retained:
            errors.append(_wrapped(InternalError(f"a fault of stepscope: {text}; please report it"), error))
    if isinstance(of_schedule, Exception):
        errors.append(of_schedule)
    elif of_schedule is not None:  # a `SystemExit` and the like
        errors.append(_wrapped(ScheduleError(f"the schedule failed: {error_text(of_schedule)}"), of_schedule))
    return errors


def _error_notes(pipeline: Pipeline) -> Iterator[str]:
    """A sentence for each backend and exporter that failed, and for late events of each source. The flight recorder reports its
    triggers itself."""
    for source in pipeline.sources:
        if source.raised.count:
            count = human_count(source.raised.count, "time")
            yield f"backend {source.name!r} failed {count}, first in {source.raised.first}; raise_errors() raises it"
    for worker in pipeline.workers:
        statistics = worker.statistics()
        if statistics.errors:
            count = human_count(statistics.errors, "time")
            yield f"exporter {worker.name!r} failed {count}, first by {statistics.first_error}; raise_errors() raises it"
    for name, late in pipeline.statistics().windows.late.items():
        if late:
            count = human_count(late, "event")
            yield f"late: {count} of {name!r} came after the window was closed, which is without them, even if it counts as complete"
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

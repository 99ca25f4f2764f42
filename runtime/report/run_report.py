"""The trust report: recorded and dropped events, clocks, costs, and the reasons for anything that is missing."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import add

from stepscope.runtime.analysed import as_html
from stepscope.runtime.display.text_table import human_count, human_time
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.export.exporter_accounts import counted, remedy
from stepscope.runtime.files.encoding import json_bytes
from stepscope.runtime.files.paths import readable
from stepscope.runtime.loop.pipeline import PipelineStatistics
from stepscope.runtime.overhead.budget import MIN_RECORDED_NS
from stepscope.runtime.recording.recorder_statistics import RecorderStatistics, WorkerStatistics
from stepscope.runtime.report.profiler_statistics import ProfilerStatistics
from stepscope.runtime.settings.documented import Documented
from stepscope.runtime.sources.sink import BackendReport

SHOWN = 16
"""Joined processes, and saved windows, with a line of their own. The others share one line."""
OWN_CLOCK = "CLOCK_MONOTONIC"
"""The clock of the recorder. Another one of a backend is always shown, with its error."""
WALL_CLOCK_SET_NS = 500_000_000
"""A larger difference between the clocks means that the wall clock was set, or the machine suspended."""


class RunReport(Documented, frozen=True, kw_only=True):
    """The facts of a run. `str()` returns the text for people, `text(verbose=True)` also clocks and costs, `json()` everything for
    programs."""

    name: str
    """Name of the run."""
    statistics: ProfilerStatistics
    """Accounts of every stage."""
    anchor: ClockAnchor | None
    """Read when the run was opened."""
    anchor_now: ClockAnchor
    """Read for this report."""
    output_dir: str
    """Directory of the run, where its journal is."""
    saved: tuple[str, ...] = ()
    """Journals of the windows that the flight recorder saved and did not delete, the oldest first."""
    backends: Mapping[str, BackendReport]
    """Report of each backend, by its name."""
    diagnostics: tuple[str, ...]
    """Reasons why less was recorded than requested, a sentence each."""
    imbalances: tuple[str, ...] = ()
    """Accounts that do not balance, a sentence each: they show a mistake in stepscope."""

    def json(self) -> str:
        """Returns the report as JSON."""
        return json_bytes(self).decode()

    def _repr_html_(self) -> str:
        """For notebooks."""
        return as_html(self)

    def __str__(self) -> str:
        return self.text()

    def text(self, *, verbose: bool = False) -> str:
        """The report for people.

        Args:
            verbose: whether to add the clock and what recording cost. Without it, a clock that was set is reported all the same.
        """
        return readable("\n".join([f"Trust report of {self.name}", *(f"  {line}" for line in self._lines(verbose))]))

    def _lines(self, verbose: bool) -> Iterator[str]:
        stats, pipeline, recorder = self.statistics, self.statistics.pipeline, self.statistics.recorder
        yield f"state     {stats.state}, {human_count(stats.steps, 'step')}, {human_count(stats.windows, 'window')}"
        if stats.windows_left_out:
            yield f"left out  {human_count(stats.windows_left_out, 'window')}: windows began faster than they could be sorted"
        if stats.pauses_not_drawn:
            yield f"          {human_count(stats.pauses_not_drawn, 'pause')} not drawn, for the same reason"
        if pipeline is None or recorder is None:
            why = "; ".join(self.diagnostics) if stats.state == "inert" else "the profiler was not started"
            yield f"recorded  nothing: {why}"
            return
        yield f"run       {self.output_dir}"
        yield from _recorded(pipeline)
        yield from self._losses(pipeline, recorder)
        yield from (f"process   {line}" for line in _processes(recorder.workers))
        yield from (f"output    {line}" for line in self._outputs(pipeline))
        if pipeline.flight is not None:
            yield from (f"flight    {line}" for line in pipeline.flight.lines(closed=stats.state == "closed"))
        yield from self._saved()
        yield from self._clock(verbose)
        yield from self._backends(verbose)
        if verbose:
            yield f"cost      the program's threads: {stats.transitions}"
            shares = [("sorting events", pipeline.loop_ns), *((each.name, each.busy_ns) for each in pipeline.exporters)]
            yield f"          in the background: {', '.join(f'{name} {ns / 1e6:.2f} ms' for name, ns in shares)}"
        cost = pipeline.overhead
        if verbose or cost.recorded_ns >= MIN_RECORDED_NS or cost.budget is not None:
            yield f"overhead  {cost}"
        yield from (f"why       {note}" for note in self.diagnostics)

    def _losses(self, pipeline: PipelineStatistics, recorder: RecorderStatistics) -> Iterator[str]:
        """Lines on events that were dropped or are missing, and on whether the accounts balance."""
        stats = self.statistics
        missing = [
            f"{source}: {human_time(ns)}, {why}"
            for source, times in pipeline.windows.missing.items()
            for why, ns in times.items()
        ]
        failed = ", ".join(output.name for output in pipeline.exporters if output.errors)
        dropped = _dropped(pipeline)
        if not dropped and stats.timed_out:
            dropped = "not known"
        elif not dropped:
            reasons = [f"{failed} failed"] if failed else []
            if stats.windows_left_out:
                reasons.append(f"{human_count(stats.windows_left_out, 'window')} left out")
            if missing and not reasons:
                reasons.append("see what is missing")
            dropped = f"nothing that was counted; {', '.join(reasons)}" if reasons else "nothing"
        yield f"dropped   {dropped}"
        yield from (f"missing   {text}" for text in missing)
        if stats.timed_out:
            unsorted = recorder.waiting + pipeline.drained - pipeline.routed - pipeline.unrouted
            yield f"left      {human_count(unsorted, 'event')} that were not sorted into windows, and what outputs did not write"
        cut = ", ".join(f"{count:,} {what.replace('_', ' ')}" for what, count in recorder.cut.items() if count)
        if cut:
            yield f"cut       {cut}"
        exceptions = [
            *(["what is missing"] if missing else []),
            *([f"what {failed} lost"] if failed else []),
            *(["what was left out"] if stats.windows_left_out else []),
        ]
        balanced = f"balanced, but for {' and '.join(exceptions)}" if exceptions else "balanced"
        yield f"accounts  {'; '.join(self.imbalances) or balanced}"

    def _clock(self, verbose: bool) -> Iterator[str]:
        anchor = self.anchor
        if anchor is None:
            return
        drift = self.anchor_now.wall_ns - anchor.wall(self.anchor_now.monotonic_ns)
        was_set = abs(drift) >= WALL_CLOCK_SET_NS
        if verbose or was_set:
            yield (
                f"clock     {OWN_CLOCK}, compared with the wall clock within {anchor.error_ns / 1000:.1f} us; "
                f"the wall clock has moved by {round(drift / 1000, 1) + 0.0:+.1f} us since"  # + 0.0: no -0.0
            )
        if was_set:
            yield (
                "          the wall clock was set, or the machine was suspended: files count on from where they began; "
                "windows' wall_start_ns and spans of OTLP have the time that the clock showed"
            )

    def _backends(self, verbose: bool) -> Iterator[str]:
        for name, report in self.backends.items():
            mode = f" ({report.mode})" if report.mode else ""
            cost = f"; {report.training_thread_ns / 1e6:.2f} ms of the training thread at changes"
            clock = f": clock {report.clock}" if verbose or report.clock != OWN_CLOCK else ""
            yield f"backend   {name}{mode}{clock}{cost if verbose and report.training_thread_ns else ''}"
            yield from (f"note      {name}: {note}" for note in report.notes)

    def _outputs(self, pipeline: PipelineStatistics) -> Iterator[str]:
        """A line for each exporter: the events that it wrote. An exporter of saved windows may have written no file."""
        for output in pipeline.exporters:
            tail = ""
            if output.windows_left_out:
                tail += f", {human_count(output.windows_left_out, 'window')} skipped, as it was too far behind"
            if output.errors:
                tail += f"; {human_count(output.errors, 'error')}, first {output.first_error}"
            flight = pipeline.flight
            if (
                flight is None
                or flight.triggers.windows
                or output.ledger.offered
                or tail
                or output.unsent_files is not None
            ):
                yield f"{output.name}: {counted(output.ledger, output.unsent_files)}{tail}{remedy(output.unsent_files)}"
                continue
            so_far = "" if self.statistics.state == "closed" else " so far"
            yield f"{output.name}: wrote nothing{so_far}, as no trigger fired and save() was not called"

    def _saved(self) -> Iterator[str]:
        """The latest journals, and a command that converts the last one."""
        if len(self.saved) > SHOWN:
            yield f"saved     {len(self.saved) - SHOWN:,} earlier ones, and"
        yield from (f"saved     {path.removeprefix(self.output_dir + '/')}" for path in self.saved[-SHOWN:])
        for path in self.saved[-1:]:
            yield f"          to see it: {shlex.join(['stepscope', 'view', path])}"


def _recorded(pipeline: PipelineStatistics) -> Iterator[str]:
    windows = pipeline.windows
    accepted = sum(windows.accepted.values())
    detail = ", ".join(f"{count:,} by {source}" for source, count in windows.accepted.items() if count)
    yield f"recorded  {accepted:,} events ({detail or 'none'})"
    added = windows.released + windows.withheld - accepted
    if added > 0:
        yield f"          and {added:,} gaps, and parts of events that windows or pauses cut, for the outputs"
    if windows.withheld:
        yield (
            f"          {windows.withheld:,} of them not passed on: they wait, or belong to a window that began when the run ended"
        )


def _dropped(pipeline: PipelineStatistics) -> str:
    """Dropped events by source or exporter and reason; empty if there are none."""
    dropped = {
        f"{source} {why}": count
        for source, reasons in pipeline.windows.dropped.items()
        for why, count in reasons.items()
        if count
    }
    for output in pipeline.exporters:
        dropped |= {f"at {output.name} ({reason})": count for reason, count in output.ledger.dropped.items()}
    return ", ".join(f"{count:,} {reason}" for reason, count in dropped.items())


def _processes(workers: Sequence[WorkerStatistics]) -> Iterator[str]:
    """The accounts of joined processes. If they are many: first those that lost events, then the latest."""
    shown = sorted(reversed(workers), key=lambda worker: not (worker.dropped or worker.broken))
    for worker in shown[:SHOWN] if len(shown) > SHOWN else workers:
        who = f"{worker.name} ({worker.pid})" if worker.pid else worker.name
        yield f"{who}, {worker.state}: {_account(worker)}"
    if len(shown) > SHOWN:
        yield f"{len(shown) - SHOWN:,} more: {_account(reduce(add, shown[SHOWN:]))}"


def _account(worker: WorkerStatistics) -> str:
    lost = (
        ("dropped", worker.dropped),
        ("of them by threads without a ring", worker.without_ring),
        ("waiting", worker.waiting),
        ("broken rings", worker.broken),
    )
    return f"{worker.drained:,} of {worker.produced:,} events" + "".join(f", {n:,} {what}" for what, n in lost if n)

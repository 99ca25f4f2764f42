"""The trust report: what was recorded, what was dropped, by which clock, at what cost, and what could not be had."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import add

from stepscope.runtime.accounting.statistics import PipelineStatistics, ProfilerStatistics
from stepscope.runtime.analysed import as_html
from stepscope.runtime.display.text_table import human_count, human_time
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.export.delivery_outcome import counted, remedy
from stepscope.runtime.files.encoding import json_bytes
from stepscope.runtime.files.paths import readable
from stepscope.runtime.recording.joined_accounts import WorkerStatistics
from stepscope.runtime.settings.documented import Documented
from stepscope.runtime.sources.sink import BackendReport

SHOWN = 16
"""Processes that joined, and windows that were saved, each on a line of its own; the others share one."""


class RunReport(Documented, frozen=True, kw_only=True):
    """Facts first; `str()` is the text for people, `json()` the one for programs."""

    name: str
    """Of the run."""
    statistics: ProfilerStatistics
    """Accounts of every stage."""
    anchor: ClockAnchor | None
    """Read when the run was opened."""
    anchor_now: ClockAnchor
    """Read for this report."""
    output_dir: str
    """Directory of the run, where its journal is."""
    saved: tuple[str, ...] = ()
    """Journals of the windows that the flight recorder has saved and kept, the oldest first."""
    backends: Mapping[str, BackendReport]
    """What each backend says of itself, by its name."""
    diagnostics: tuple[str, ...]
    """Why less was recorded than was asked for, in words."""
    imbalances: tuple[str, ...] = ()
    """Accounts that do not agree, in words: there is a mistake in stepscope then."""

    def json(self) -> str:
        """The report as JSON text."""
        return json_bytes(self).decode()

    def _repr_html_(self) -> str:
        """For notebooks."""
        return as_html(self)

    def __str__(self) -> str:
        return readable("\n".join([f"Trust report of {self.name}", *(f"  {line}" for line in self._lines())]))

    def _lines(self) -> Iterator[str]:  # noqa: C901
        stats, pipeline = self.statistics, self.statistics.pipeline
        yield f"state     {stats.state}, {human_count(stats.steps, 'step')}, {human_count(stats.windows, 'window')}"
        if stats.windows_left_out:
            yield f"left out  {human_count(stats.windows_left_out, 'window')}: windows began faster than they could be sorted"
        if stats.pauses_untold:
            yield f"          {human_count(stats.pauses_untold, 'pause')} not drawn, for the same reason"
        if pipeline is None or stats.recorder is None:
            why = "; ".join(self.diagnostics) if stats.state == "inert" else "the profiler was not started"
            yield f"recorded  nothing: {why}"
            return
        yield f"run       {self.output_dir}"
        windows = pipeline.windows
        accepted = sum(windows.accepted.values())
        detail = ", ".join(f"{count:,} by {source}" for source, count in windows.accepted.items() if count)
        yield f"recorded  {accepted:,} events ({detail or 'none'})"
        made = windows.released + windows.withheld - accepted
        if made > 0:
            yield f"          and {made:,} gaps, and parts of events that windows or pauses cut, for the outputs"
        if windows.withheld:
            yield f"          {windows.withheld:,} of them not given: they wait, or are of a window that began when the run ended"
        dropped = {
            f"{source} {why}": n for source, reasons in windows.dropped.items() for why, n in reasons.items() if n
        }
        for output in pipeline.exporters:
            dropped |= {f"at {output.name} ({reason})": count for reason, count in output.ledger.dropped.items()}
        lost = ", ".join(f"{count:,} {reason}" for reason, count in dropped.items())
        missing = [
            f"{source}: {human_time(ns)}, {why}"
            for source, times in windows.missing.items()
            for why, ns in times.items()
        ]
        failed = ", ".join(output.name for output in pipeline.exporters if output.errors)
        left_out = human_count(stats.windows_left_out, "window") if stats.windows_left_out else ""
        reasons = (f"{failed} failed" if failed else "", f"{left_out} left out" if left_out else "")
        lacking = ", ".join(filter(None, reasons)) or ("see what is missing" if missing else "")
        nothing = f"nothing that was counted; {lacking}" if lacking else "nothing"
        yield f"dropped   {lost or ('not known' if stats.given_up else nothing)}"
        yield from (f"missing   {text}" for text in missing)
        if stats.given_up:
            unsorted = stats.recorder.waiting + pipeline.drained - pipeline.routed - pipeline.unrouted
            yield f"left      {human_count(unsorted, 'event')} that were not sorted into windows, and what outputs did not write"
        cut = ", ".join(f"{count:,} {what.replace('_', ' ')}" for what, count in stats.recorder.cut.items() if count)
        if cut:
            yield f"cut       {cut}"
        exceptions = (("what is missing", missing), (f"what {failed} lost", failed), ("what was left out", left_out))
        besides = [what for what, there in exceptions if there]
        balanced = f"balanced, but for {' and '.join(besides)}" if besides else "balanced"
        yield f"accounts  {'; '.join(self.imbalances) or balanced}"
        yield from (f"process   {line}" for line in _processes(stats.recorder.workers))
        yield from (f"output    {line}" for line in self._outputs(pipeline))
        if pipeline.flight is not None:
            yield from (f"flight    {line}" for line in pipeline.flight.lines(closed=stats.state == "closed"))
        yield from self._saved()
        anchor = self.anchor
        if anchor is not None:
            # + 0.0: a difference of nothing is not shown as -0.0.
            drift = self.anchor_now.wall_ns - anchor.wall(self.anchor_now.monotonic_ns)
            yield (
                f"clock     CLOCK_MONOTONIC, set to wall time within {anchor.error_ns / 1000:.1f} us; "
                f"wall time has moved by {round(drift / 1000, 1) + 0.0:+.1f} us against it since"
            )
            if abs(drift) >= 500_000_000:
                yield (
                    "          the wall clock was set, or the machine was suspended: files count on from where they began; "
                    "windows' wall_start_ns and spans of OTLP have the time that the clock showed"
                )
        for name, report in self.backends.items():
            mode = f" ({report.mode})" if report.mode else ""
            cost = f"; {report.training_thread_ns / 1e6:.2f} ms of the training thread at changes"
            yield f"backend   {name}{mode}: clock {report.clock}{cost if report.training_thread_ns else ''}"
            yield from (f"note      {name}: {note}" for note in report.notes)
        yield f"cost      {stats.transitions}"
        yield f"          {pipeline.loop_ns / 1e6:.2f} ms passed in the background loop, sorting events; the program went on"
        for output in pipeline.exporters:
            yield f"          {output.busy_ns / 1e6:.2f} ms passed in calls of {output.name}, likewise"
        yield f"overhead  {pipeline.overhead}"
        yield from (f"why       {note}" for note in self.diagnostics)

    def _outputs(self, pipeline: PipelineStatistics) -> Iterator[str]:
        """What each has written. The name of one may stand for files that there are none of, as nothing was kept."""
        for output in pipeline.exporters:
            tail = ""
            if output.windows_left_out:
                tail += f", {human_count(output.windows_left_out, 'window')} not given as it was too far behind"
            if output.errors:
                tail += f"; {human_count(output.errors, 'error')}, first {output.first_error}"
            flight = pipeline.flight
            if flight is None or flight.triggers.windows or output.ledger.offered or tail or output.kept is not None:
                yield f"{output.name}: {counted(output.ledger, output.kept)}{tail}{remedy(output.kept)}"
                continue
            so_far = "" if self.statistics.state == "closed" else " so far"
            yield f"{output.name}: wrote nothing{so_far}, as no trigger fired and save() was not called"

    def _saved(self) -> Iterator[str]:
        """The latest of the files, and what shows the last of them."""
        if len(self.saved) > SHOWN:
            yield f"saved     {len(self.saved) - SHOWN:,} earlier ones, and"
        yield from (f"saved     {path.removeprefix(self.output_dir + '/')}" for path in self.saved[-SHOWN:])
        for path in self.saved[-1:]:
            yield f"          to see it: {shlex.join(['stepscope', 'convert', path, 'trace.json'])}"


def _processes(workers: Sequence[WorkerStatistics]) -> Iterator[str]:
    """The accounts of the processes that joined; if they are many, of those that lost something first, then of the latest."""
    shown = sorted(reversed(workers), key=lambda worker: not (worker.dropped or worker.broken))
    for worker in shown[:SHOWN] if len(shown) > SHOWN else workers:
        who = f"{worker.name} ({worker.pid})" if worker.pid else worker.name
        yield f"{who}, {worker.state}: {_account(worker)}"
    if len(shown) > SHOWN:
        yield f"{len(shown) - SHOWN:,} more: {_account(reduce(add, shown[SHOWN:]))}"


def _account(worker: WorkerStatistics) -> str:
    lost = (
        ("dropped", worker.dropped),
        (f"of them by threads without a ring{f' ({worker.denied})' if worker.denied else ''}", worker.without_ring),
        ("waiting", worker.waiting),
        ("broken rings", worker.broken),
    )
    return f"{worker.drained:,} of {worker.produced:,} events" + "".join(f", {n:,} {what}" for what, n in lost if n)

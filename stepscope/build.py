"""`trace()`: builds a profiler from its arguments."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from stepscope.backends.base import Backend, Streaming
from stepscope.backends.parallel_layout import with_layout
from stepscope.backends.torch import loader as torch_loader
from stepscope.exporters.base import Exporter
from stepscope.exporters.callback import CallbackExporter
from stepscope.exporters.journal import JournalExporter, WindowJournalsExporter
from stepscope.runtime import analysed
from stepscope.runtime.control.entry_points.environment import options_from_environment, run_directory, with_signals
from stepscope.runtime.control.settings import Control
from stepscope.runtime.display.text_table import Column, human_time
from stepscope.runtime.export.formats import exporter_for
from stepscope.runtime.export.run import Metadata
from stepscope.runtime.flight.settings import MAX_STEPS, FlightRecorder
from stepscope.runtime.journal.writer import MIN_BYTES
from stepscope.runtime.lifecycle import interpreter_exit as closing_at_exit
from stepscope.runtime.lifecycle.open_run import RunFacts
from stepscope.runtime.lifecycle.output_directory import Output, file_name
from stepscope.runtime.loop.pipeline import RunSetup
from stepscope.runtime.memory_limits import memory_limits
from stepscope.runtime.observers import stack_sampler, task_runs
from stepscope.runtime.options import Options
from stepscope.runtime.overhead.budget import OverheadBudget
from stepscope.runtime.profiler import Profiler
from stepscope.runtime.report.profiler_statistics import ProfilerStatistics
from stepscope.runtime.schedule.schedule import ScheduleFunction, always, never
from stepscope.runtime.session.job import rank_from_environment
from stepscope.runtime.session.ranks import MAX_RANKS
from stepscope.runtime.settings.arguments import got, lacking, switch_argument
from stepscope.runtime.settings.checked import settings
from stepscope.runtime.settings.validation import suggesting
from stepscope.runtime.windows.summary import Summary

if TYPE_CHECKING:
    from stepscope.analysis.findings import Answer


class _Analysis:
    """Imports the analysis when it is used: recording needs none of it."""

    def explain(self, path: Path) -> Answer:
        from stepscope.analysis.explain import explain

        return explain(path)

    def refused(self, path: Path, why: str) -> Answer:
        from stepscope.analysis.explain import refused

        return refused(str(path), why)

    def html(self, shown: object) -> str:
        return _html_of(shown)


analysed.by = _Analysis()

_INSTALLED = (closing_at_exit, stack_sampler, task_runs, torch_loader)
"""Imported for what they install: profilers that are open at the interpreter's exit are closed, and signals are known. A profiler that
is made later may find no descriptors to import them."""


@suggesting
def trace(
    *,
    schedule: ScheduleFunction | None = None,
    keep_last: int | FlightRecorder | None = None,
    backends: Sequence[Backend] = (),
    exporters: Sequence[Exporter] = (),
    on_trace_ready: Callable[..., Any] | Exporter | None = None,
    name: str = "stepscope",
    output_dir: str | os.PathLike[str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    start: bool = True,
    overhead_budget: float | OverheadBudget | None = None,
    options: Options | None = None,
    control: str | os.PathLike[str] | Control | None = None,
    fixed: Collection[str] = (),
) -> Profiler:
    """Makes a profiler, to be used with `with` or `async with`.

    Args:
        schedule: which steps are recorded; any callable from a step's number, 0 for the first, to a
            `ProfilerAction`. Without one every step is, in one window.
        keep_last: instead of a schedule: record always, keep the last steps in memory, and save them as a window when
            a trigger fires. How many steps, or a `FlightRecorder` that says more. Each saved window has a journal of
            its own, in `windows` in the run's directory.
        backends: what records beside `span()` and its like.
        exporters: where events go, while they are recorded. A journal in `output_dir` is kept in any case, unless
            `options.journal` is off.
        on_trace_ready: called with each finished `Window`, off the training thread: a callable, a coroutine
            function, or an exporter, which is then simply added to `exporters`.
        name: of the run, in reports and outputs.
        output_dir: directory of the run; a rank gets a directory of its own in it. Default: a new one under
            `stepscope_runs`, which ranks share where torchrun has all of them on one machine, or their job has an id.
        metadata: facts for every output. `parallel_layout`, such as `{"data": 2, "tensor": 4}`, says how the job is divided among its
            ranks; without it that is found out, where torch.distributed or MindSpore knows it by then.
        rank: of this process in a distributed job. Default: what the environment says (RANK, SLURM_PROCID, ...).
        world_size: how many ranks the job has. Default: likewise.
        start: False to call `start()` yourself; entering the context does not start it then.
        overhead_budget: what recording may cost, as a share of the time, such as 0.01; more settings are in
            `OverheadBudget`. When it costs more, detail is lowered, and raised again when there is room; step marks are
            always recorded. The reductions are in the trace, the windows' diagnostics and the report. Without a budget the
            cost is only measured.
        options: sizes of buffers, deadlines, and what is dropped first.
        control: by which ways windows can be asked of the running profiler: a file to watch, or a directory whose file
            `stepscope.json` is, or a `Control` that says more. Without a schedule nothing is recorded then but what is
            asked for.
        fixed: names of what the environment has no say in, such as `output_dir`: for programs that decide about it
            themselves.

    The environment variable STEPSCOPE_OPTIONS, a JSON object, takes the place of what it names: docs/control.md.

    Raises:
        ControlError: if STEPSCOPE_OPTIONS or STEPSCOPE_SIGNALS cannot be followed. A `ValueError`.
        TypeError: if an argument is not what it should be.
        ValueError: if two backends or two exporters have one name, the rank is not below the number of ranks, the budget is
            no share of the time, a schedule or a backend that delivers only when a window ends is given with `keep_last`, or
            `fixed` names what is not there.
    """
    environment = options_from_environment(fixed)
    chosen = settings("options", options, Options)
    if not isinstance(name, str) or not name:
        raise TypeError(f"name must be a non-empty str, {got(name)}")
    if schedule is not None and not (callable(schedule) and _takes_a_step(schedule)):
        raise TypeError(
            f"schedule must be callable with a step's number, {got(schedule)}; "
            "write schedule=stepscope.schedule(wait=..., warmup=..., active=...)"
        )
    switch_argument("start", start)
    control = Control.of(control)
    for argument, value, least in (("rank", rank, 0), ("world_size", world_size, 1)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise TypeError(f"{argument} must be a whole number from {least}, {got(value)}")
    if world_size is not None and world_size > MAX_RANKS:
        raise ValueError(f"world_size must be {MAX_RANKS:,} at most, got {world_size:,}")
    if rank is not None and rank >= MAX_RANKS:
        raise ValueError(f"rank must be below {MAX_RANKS:,}, got {rank:,}")
    if rank is not None and world_size is not None and rank >= world_size:
        raise ValueError(f"rank is {rank} in a world of {world_size}: ranks are numbered from 0")
    if metadata is not None and not isinstance(metadata, Mapping):
        raise TypeError(f"metadata must be a mapping, {got(metadata)}")
    if output_dir is not None and not isinstance(output_dir, str | os.PathLike):
        raise TypeError(f"output_dir must be a path, {got(output_dir)}")
    if environment is not None:
        if not environment.enabled or environment.window is not None:
            schedule, keep_last = never, environment.keep_last if environment.enabled else None
        elif environment.schedule is not None or environment.keep_last is not None:
            schedule, keep_last = environment.schedule, environment.keep_last
        chosen = environment.changed(chosen)
        control = environment.control or control if environment.enabled else None
        name = environment.name or name
        overhead_budget = environment.overhead_budget or overhead_budget
        metadata = {**(metadata or {}), **environment.metadata}
    chosen = with_signals(chosen)
    if control is not None and schedule is None and keep_last is None:
        schedule = never
    flight = _flight(keep_last, schedule, backends)
    _check_items("backend", backends, Backend)
    _check_items("exporter", exporters, Exporter)
    budget = OverheadBudget.of(overhead_budget)
    announced_rank, announced_size = rank_from_environment()
    rank = announced_rank if rank is None else rank
    if environment is not None and environment.output_dir is not None:
        output_dir = run_directory(environment.output_dir, file_name(name))
    output = Output.choose(output_dir, name, rank)
    consumers: list[Exporter] = list(exporters)
    if chosen.journal and not any(isinstance(exporter, JournalExporter) for exporter in consumers):
        consumers.insert(0, _journal(chosen, flight))
    called = getattr(on_trace_ready, "__name__", "")
    if called == "tensorboard_trace_handler" or (
        isinstance(on_trace_ready, type) and hasattr(on_trace_ready, "export")
    ):
        raise TypeError(f"on_trace_ready must be what {called}(...) returns, {got(on_trace_ready)}; call it")
    if inspect.isgeneratorfunction(on_trace_ready) or inspect.isasyncgenfunction(on_trace_ready):
        raise TypeError(f"on_trace_ready has a yield, {got(on_trace_ready)}: nothing in it would run; remove the yield")
    if isinstance(on_trace_ready, Exporter) and not isinstance(on_trace_ready, type):
        consumers.append(on_trace_ready)
    elif callable(on_trace_ready):
        consumers.append(CallbackExporter(on_trace_ready, output.written))
    elif on_trace_ready is not None:
        hint = (
            "; write on_trace_ready=stepscope.tensorboard_trace_handler(...)" if isinstance(on_trace_ready, str) else ""
        )
        raise TypeError(f"on_trace_ready must be callable or an exporter, {got(on_trace_ready)}{hint}")
    _check_names("backends", [backend.name for backend in backends])
    _check_names("exporters", [exporter.name for exporter in consumers])
    facts = RunFacts(
        name=name,
        rank=rank,
        world_size=announced_size if world_size is None else world_size,
        metadata=Metadata(with_layout(metadata or {})),
        output=output,
    )
    setup = RunSetup(
        options=chosen,
        limits=memory_limits(chosen, len(consumers)),
        backends=list(backends),
        exporters=consumers,
        keep_last=flight,
        budget=budget,
    )
    profiler = Profiler(facts, setup, schedule or always, start=start, control=control)
    if environment is not None and environment.window is not None and environment.enabled:
        profiler.arm(environment.window, trigger="environment")
    return profiler


def _flight(keep_last: object, schedule: ScheduleFunction | None, backends: Sequence[Backend]) -> FlightRecorder | None:
    if keep_last is None:
        return None
    if isinstance(keep_last, int) and not isinstance(keep_last, bool):
        if not 1 <= keep_last <= MAX_STEPS:
            raise ValueError(f"keep_last must be 1 to {MAX_STEPS:,}, got {keep_last:,}")
        keep_last = FlightRecorder(steps=keep_last)
    if not isinstance(keep_last, FlightRecorder):
        raise TypeError(
            f"keep_last must be a number of steps, such as 20, or a stepscope.FlightRecorder(steps=...), {got(keep_last)}"
        )
    if schedule is not None:
        raise ValueError(
            "keep_last records at all times, so it takes no schedule; leave one out, or use two profilers at once"
        )
    for backend in backends if isinstance(backends, Sequence) else ():
        if isinstance(backend, Streaming):
            backend.stream_only()
    return keep_last


def _journal(options: Options, flight: FlightRecorder | None) -> Exporter:
    if flight is None:
        return JournalExporter.of(options)
    files = flight.keep_newest + flight.keep_slowest + 1
    return WindowJournalsExporter(max_bytes=max(options.journal_max_bytes // files, MIN_BYTES))


def _takes_a_step(schedule: Callable[..., Any]) -> bool:
    """Whether a callable can be called with a step's number, as `stepscope.schedule` itself cannot."""
    try:
        signature = inspect.signature(schedule)
    except (TypeError, ValueError):  # a function in C may not say it
        return True
    try:
        signature.bind(0)
    except TypeError:
        return False
    return True


def _check_items(what: str, value: object, contract: Any) -> None:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        likely = f"{type(value).__name__}(...)" if isinstance(value, contract) else "..."
        raise TypeError(f"{what}s must be a list, {got(value)}; write {what}s=[{likely}]")
    for item in cast(Sequence[object], value):
        if isinstance(item, type):
            raise TypeError(f"{item!r} is no {what}: it is a class; give what calling it makes, {item.__name__}(...)")
        if isinstance(item, str | Path) and what == "exporter":
            raise TypeError(
                f"exporters must have objects, {got(item)}; write exporters=[{_exporter_of(os.fspath(item))}]"
            )
        if not isinstance(item, contract):
            see = f"see stepscope.{what}s.{contract.__name__}"
            raise TypeError(f"{item!r} is no {what}: it lacks {lacking(item, contract)}, {see}")


def _exporter_of(path: str) -> str:
    """Returns the function that makes the exporter for a file of this ending."""
    try:
        name = type(exporter_for(path)).__name__
    except ValueError:
        name = "ChromeTraceExporter"
    return f"stepscope.exporters.{name}({path!r})"


def _check_names(what: str, names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"two {what} are named {twice[0]!r}: give one of them another name, ledgers distinguish them by it"
        )


_MOST_ROWS = 10
"""Rows of the table below a profiler."""
_HEAD = (
    Column("Name", right=False),
    Column("Category", right=False),
    *(Column(name) for name in ("Count", "Self", "Total", "Mean", "Median", "p95")),
)


def _html_of(shown: object) -> str:
    """A part of a page, for notebooks: a profiler, its table or its report."""
    from stepscope.analysis.page.render import tables_html

    if isinstance(shown, Profiler):
        notes = [*shown.diagnostics(), "profiler.explain() says what is slow, profiler.report() what was dropped."]
        facts = [*_facts_of_profiler(shown.statistics()).items(), ("directory", shown.output.path)]
        return tables_html(f"Profiler {shown.name}", facts, _tables_of_spans(shown.aggregates(), _MOST_ROWS), notes)
    if isinstance(shown, Summary):
        return tables_html(tables=_tables_of_spans(shown), notes=() if shown.rows else ["No spans were recorded."])
    title, *lines = str(shown).splitlines()
    return tables_html(title, [(line[2:12].strip(), line[12:]) for line in lines])


def _facts_of_profiler(now: ProfilerStatistics) -> dict[str, object]:
    facts: dict[str, object] = {"state": now.state, "steps": f"{now.steps:,}", "windows": f"{now.windows:,}"}
    if now.pipeline is None:
        return facts
    windows = now.pipeline.windows
    dropped = sum(sum(reasons.values()) for reasons in windows.dropped.values())
    return facts | {"events": f"{sum(windows.accepted.values()):,}", "dropped": f"{dropped:,}"}


def _tables_of_spans(
    table: Summary, most: int | None = None
) -> list[tuple[str, tuple[Column, ...], list[tuple[str, ...]]]]:
    rows = [
        (row.name or "(no name)", row.category, f"{row.count:,}", human_time(row.self_ns))
        + tuple(human_time(ns) for ns in (row.total_ns, row.mean_ns, row.p50_ns, row.p95_ns))
        for row in table.rows[:most]
    ]
    return [("Spans of closed windows", _HEAD, rows)] if rows else []

"""Analysis: reads a window from its journal and makes every product of it, each on its own."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from stepscope.analysis.tables.collectives import CollectiveTable, Key
from stepscope.analysis.tables.parallel_layout import has_groups
from stepscope.compat.mindspore.mstx import is_wanted_domain
from stepscope.compat.mindspore.options.options import ProfilerOptions
from stepscope.compat.mindspore.output_layout import make_numbered
from stepscope.compat.mindspore.products.base import Product, is_communication
from stepscope.compat.mindspore.products.communication import Communication, ParallelLayoutFile
from stepscope.compat.mindspore.products.data_pipeline import DataPipelineFiles, ProcessorUse
from stepscope.compat.mindspore.products.flops import Flops
from stepscope.compat.mindspore.products.host import FoldedStacks, HostInfo
from stepscope.compat.mindspore.products.memory import MemoryRecord, MemoryUsage
from stepscope.compat.mindspore.products.operators import OperatorFiles, OperatorTable
from stepscope.compat.mindspore.products.steps import StepPhases, StepTimes
from stepscope.compat.mindspore.products.timeline import ReportPage, TimelineSummary, TraceView
from stepscope.compat.mindspore.sources.device import DeviceTarget
from stepscope.runtime.display.text_table import human_count
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.export.run import Run
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.journal.replay import Replayed, replay_into, run_of
from stepscope.runtime.windows.window import Window

log = logging.getLogger("stepscope")

MOST_NAMED = 5
"""Steps that a sentence names; it counts the others."""

PRODUCTS = "ASCEND_PROFILER_OUTPUT"
"""Directory of the products in that of a window, as MindSpore's tools look for it, whatever the device."""


class AnalysisRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Options for the analysis of a window."""

    options: ProfilerOptions
    target: DeviceTarget
    pretty: bool = False
    steps: tuple[int, ...] | None = None
    """Only these steps, which need not be consecutive; `None` for all."""
    foreign: bool = False
    """Whether another profiler than `stepscope.mindspore` recorded it, so that its layout was not written."""
    fastest: Mapping[Key, int] = {}
    """ns of each collective on the rank that was in it for the shortest time, if other ranks are analysed with this one."""


class ProductStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one product."""

    name: str
    files: tuple[Path, ...] = ()
    problem: str = ""
    """The reason why it was not made; empty if it was, or if the window has no data for it."""


class WindowAnalysis(msgspec.Struct, frozen=True, kw_only=True):
    """The products of one window."""

    directory: Path
    """Directory of the products."""
    window: int
    steps: tuple[int, ...]
    """Steps that were analysed."""
    recorded: tuple[int, ...] = ()
    """Steps of the window."""
    products: tuple[ProductStatus, ...]
    dropped: int = 0
    """Events that the size limit excluded from the timeline."""
    lacking: str = ""
    """The part of the window that the journal, and so the products, lack; empty if nothing is missing."""

    @property
    def complete(self) -> bool:
        """True if every product was made, of all recorded data."""
        return not self.lacking and not any(product.problem for product in self.products)

    def text(self) -> str:
        """A line for each product."""
        lines = [f"window {self.window}, {human_count(len(self.steps), 'step')}: {self.directory}"]
        for product in self.products:
            result = ", ".join(path.name for path in product.files) or "nothing was recorded for it"
            lines.append(f"  {product.name:16} {f'FAILED: {product.problem}' if product.problem else result}")
        lines += [f"  {self.dropped:,} events were kept out by timeline_limit"] if self.dropped else []
        lines += [f"  INCOMPLETE: {self.lacking}"] if self.lacking else []
        return "\n".join(lines)


class Analysis(msgspec.Struct, frozen=True):
    """The products of all windows."""

    windows: tuple[WindowAnalysis, ...] = ()
    rejected: tuple[str, ...] = ()
    """Directories and windows that were passed over, and steps that were not recorded: one sentence for each, with the reason."""
    unreadable: tuple[str, ...] = ()
    """The sentences about windows or directories that could not be read or written."""
    notes: tuple[str, ...] = ()
    """Sentences: facts that the products lack, and why."""

    @classmethod
    def of(
        cls,
        windows: Iterable[WindowAnalysis],
        steps: tuple[int, ...] | None,
        rejected: Iterable[str] = (),
        failed: Iterable[str] = (),
        notes: Iterable[str] = (),
    ) -> Analysis:
        """Collects the results of windows, or of `steps` in them. Logs each note, and each reason why something was left
        out."""
        done, failures = tuple(windows), tuple(failed)
        missing = _not_recorded(steps, (step for window in done for step in window.recorded))
        reasons = (*rejected, *failures, *([missing] if missing else []))
        for reason in reasons:
            log.warning("passed over in the analysis: %s", reason)
        sentences = tuple(notes)
        for sentence in sentences:
            log.warning("%s", sentence)
        return cls(done, reasons, failures, sentences)

    @property
    def complete(self) -> bool:
        """True if every product of every recorded window was made."""
        return not self.unreadable and all(window.complete for window in self.windows)

    def __str__(self) -> str:
        lines = [window.text() for window in self.windows] or ["no window was recorded"]
        return "\n".join([*lines, *(f"passed over: {reason}" for reason in self.rejected), *self.notes])


def _not_recorded(requested: Sequence[int] | None, recorded: Iterable[int]) -> str:
    """Says which of the steps asked for were not recorded, with the nearest that was; empty if all were."""
    steps = sorted(set(recorded))
    missing = sorted(set(requested or ()) - set(steps))
    if not missing:
        return ""
    named = ", ".join(map(str, missing[:MOST_NAMED]))
    more = f" and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
    if not steps:
        return f"step_list: {named}{more}: no step was recorded"
    nearest = min(steps, key=lambda step: abs(step - missing[0]))
    were = "was" if len(missing) == 1 else "were"
    return f"step_list: {named}{more} {were} not recorded; the nearest to {missing[0]} is {nearest}"


def analyse_window(
    journal: Path, window: Window | int, directory: Path, request: AnalysisRequest
) -> tuple[WindowAnalysis, OperatorTable]:
    """Makes the products of one window in a new directory in that of the window. Where one fails, the others are made.

    It runs an event loop of its own, so it may not be called where one runs.

    Raises:
        FormatError: if the journal cannot be read.
        OSError: if the directory cannot be made.
    """
    directory.mkdir(parents=True, exist_ok=True)
    place = make_numbered(directory, PRODUCTS)
    stages = _stages(place, journal, request)
    maker = _Maker(stages, request)

    async def play() -> Replayed:
        with JournalReader(journal) as reader:
            return await replay_into(reader, maker, run_of(reader, place), window)

    replayed = asyncio.run(play())
    table = next(stage.table for stage in stages if isinstance(stage, OperatorFiles))
    done = WindowAnalysis(
        directory=place,
        window=window.index if isinstance(window, Window) else window,
        steps=maker.steps,
        recorded=maker.recorded,
        products=tuple(maker.status),
        dropped=sum(stage.dropped for stage in stages if isinstance(stage, TraceView)),
        lacking=_lacking(replayed, maker.window),
    )
    if done.lacking:
        log.warning(
            "the analysis of window %d of %s is incomplete: %s; the journal is not deleted",
            done.window,
            journal,
            done.lacking,
        )
    return done, table


def _lacking(replayed: Replayed, window: Window | None) -> str:
    """Says which part a journal lacks of a window that was played from it."""
    reasons: list[str] = []
    if replayed.damage:
        reasons.append(f"damage in the journal: {replayed.damage}")
    if replayed.unfinished or not replayed.windows:
        reasons.append("the journal has no end of the window: the run was interrupted, or the file was cut")
    if window is not None:
        lost = Counter({f"of {name}": sum(source.dropped.values()) for name, source in window.ledger.sources.items()})
        journal = window.ledger.outputs.get("journal")
        lost["at the journal"] = 0 if journal is None else sum(journal.dropped.values())
        reasons += [f"{count:,} events {where} were dropped" for where, count in lost.items() if count]
        accepted = sum(source.accepted for source in window.ledger.sources.values())
        missing = accepted - lost["at the journal"] - replayed.events
        if missing > 0:
            reasons.append(f"{missing:,} of its {accepted:,} events are not in the journal")
    return "; ".join(reasons)


def operators_of(journal: Path, window: int, steps: tuple[int, ...] | None) -> OperatorTable:
    """The operators of a window, or of some of its steps, read from its journal."""
    table = OperatorTable()
    with JournalReader(journal) as reader:
        for item in reader.items(window):
            if isinstance(item, EventBatch):
                table.add(_of_steps(item, steps))
    return table


def collectives_of(journal: Path) -> CollectiveTable:
    """The collectives of all windows of a journal. Raises `FormatError` if it cannot be read."""
    table = CollectiveTable(is_communication)
    with JournalReader(journal) as reader:
        for item in reader:
            if isinstance(item, EventBatch):
                table.update(item)
            elif isinstance(item, Window):
                table.in_groups |= has_groups(item.metadata)
    return table


def _stages(place: Path, journal: Path, request: AnalysisRequest) -> list[Product]:
    options, target = request.options, request.target
    operators = OperatorFiles(place, target.device_id)
    memory = MemoryRecord(place, target.device, by_step=options.memory)
    stages: list[Product] = [
        TraceView(place, options.timeline_limit, request.pretty),
        operators,
        StepTimes(place, target.rank),
        memory,
        Flops(place, target.rank, options.peak_flops),
        StepPhases(place),
        TimelineSummary(place, target.device, target.device_id, operators.table),
    ]
    if options.data_process:
        stages += [DataPipelineFiles(place, target.device_id), ProcessorUse(place, target.device_id)]
    if options.memory:
        stages.append(MemoryUsage(place, target.rank, target.memory, memory))
    if options.communication:
        stages.append(Communication(place, target.rank, request.fastest))
    if options.profile_framework is not None:
        stages.append(HostInfo(place, target.rank))
    if options.stacks:
        stages.append(FoldedStacks(place, target.rank))
    if request.foreign:
        stages.append(ParallelLayoutFile(place.parent, target.rank))
    return [*stages, ReportPage(place, journal, options.peak_flops)]


class _Maker:
    """Feeds the products of a window. One that raises is left out from then on, and its status says why."""

    name = "products"

    def __init__(self, stages: Sequence[Product], request: AnalysisRequest) -> None:
        self._working = list(stages)
        self._request = request
        self.status: list[ProductStatus] = []
        self.steps: tuple[int, ...] = ()
        self.recorded: tuple[int, ...] = ()
        self.window: Window | None = None

    async def open(self, run: Run) -> None:
        await self._each(lambda stage: stage.open(run))

    async def export(self, batch: EventBatch) -> None:
        batch = _of_steps(_of_domains(batch, self._request.options), self._request.steps)
        if len(batch):
            await self._each(lambda stage: stage.add(batch))

    async def close_window(self, window: Window) -> None:
        self.window = window
        self.recorded = tuple(step.number for step in window.steps)
        numbers = self._request.steps
        if numbers is not None:
            steps = tuple(step for step in window.steps if step.number in numbers)
            window = msgspec.structs.replace(window, steps=steps)
        self.steps = tuple(step.number for step in window.steps)

        async def finish(stage: Product) -> None:
            self.status.append(ProductStatus(name=stage.name, files=await stage.finish(window)))

        await self._each(finish)

    async def aclose(self) -> None:
        for stage in self._working if self.window is None else ():  # the journal has nothing of the window
            await self._abandon(stage)

    async def _each(self, call: Callable[[Product], Awaitable[None]]) -> None:
        for stage in list(self._working):
            try:
                await call(stage)
            except Exception as error:
                self._working.remove(stage)
                problem = f"{type(error).__name__}: {error}"
                if further := await self._abandon(stage):
                    problem = f"{problem}; and as it was closed, {further}"
                self.status.append(ProductStatus(name=stage.name, problem=problem))

    async def _abandon(self, stage: Product) -> str:
        """Closes the files of a product. Returns the error, if that fails."""
        try:
            await stage.abandon()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""


def _of_steps(batch: EventBatch, steps: tuple[int, ...] | None) -> EventBatch:
    if steps is None:
        return batch
    of_steps = np.isin(batch.events["step"], np.array(steps, np.int64))
    return EventBatch(batch.source, batch.window, batch.events[of_steps], batch.args)


def _of_domains(batch: EventBatch, options: ProfilerOptions) -> EventBatch:
    """Leaves out marks of mstx whose domain is not wanted."""
    if not (options.mstx_domain_include or options.mstx_domain_exclude):
        return batch
    include, exclude = options.mstx_domain_include, options.mstx_domain_exclude
    categories: list[int] = np.unique(batch.events["category"]).tolist()
    refused = [each for each in categories if not is_wanted_domain(strings.text(each), include, exclude)]
    wanted = ~np.isin(batch.events["category"], refused)
    return EventBatch(batch.source, batch.window, batch.events[wanted], batch.args)

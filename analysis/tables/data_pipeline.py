"""Data pipelines: the operators that prepare batches, their queues and workers, and which of them is too slow.

MindSpore's pipelines are as `MindDataBackend` recorded them. A DataLoader of torch is a pipeline of two: the loader in the training process,
and its workers. The thresholds are those of MindSpore 2.10 (`BottleneckAnalyzer` in mindspore/profiler/analysis/viewer/ms_minddata_viewer.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Literal, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.analysis.findings import OperatorAnswer, PipelineAdvice, PipelineAnswer
from stepscope.backends.pipeline_events import CATEGORY, HANDED_ON, PIPELINE, WAITED, label
from stepscope.runtime.events import strings
from stepscope.runtime.events.arguments import arguments
from stepscope.runtime.events.record import Block, EventBatch, Kind

BUSY_PERCENT = 75.0
"""A worker that uses more of a processor than this, or makes batches for more of the time, is busy: more workers help, where there are processors for them."""
ALL_BUSY_PERCENT = 95.0
"""The processors are all busy if they are so for this share of the time or more: more workers do not help."""
IDLE_PERCENT = 20.0
"""A worker that uses less than this is idle."""
LEAF_QUEUE_PERCENT = 50.0
"""An operator that reads the data itself is slow if its queue is filled to this or less on average."""
DEVICE_EMPTY_PERCENT = 60.0
"""The device waits for the host if the queue to it is empty in more of the samples than this."""
QUEUE_DIFFERENCE_PERCENT = 50.0
"""If an operator's input is filled so much more than its output, it is slower than the one before."""
STARVED_PERCENT = 10.0
"""The input of an operator is as good as empty if it is filled to less than this."""
MOST_PIPELINES = 8
"""Pipelines of a process in its answer."""
MOST_ITEMS = 1 << 31
"""A larger number of items or workers is an error of the recording."""
MOST_READING = 1e15
"""A larger number of milliseconds or percent is an error of the recording."""
MOST_SAMPLES = 200_000
"""Samples of an operator that are kept."""
ONE_THREAD = frozenset(
    ("Barrier", "Concat", "DataLoader", "EpochCtrl", "Rename", "Repeat", "Shuffle", "Skip", "Take", "Zip")
)
"""Types of operators that have no workers which can be more."""
TORCH_WAITS = "enumerate(DataLoader)"
"""Prefix of the names of torch's spans in which the loop waits for a batch."""
TORCH, MINDSPORE = "torch", "MindSpore"
_WORKERS = {TORCH: "num_workers", MINDSPORE: "num_parallel_workers"}
_PREFETCH = {TORCH: "prefetch_factor", MINDSPORE: "mindspore.dataset.config.set_prefetch_size"}


class PipelineOperator(msgspec.Struct, frozen=True, kw_only=True):
    """An operator, with what was sampled of it."""

    id: int
    type: str
    workers: int
    children: tuple[int, ...] = ()
    """Numbers of those that it takes its input from."""
    parent: int = -1
    """Number of the operator that takes its output; -1: the training loop does."""
    capacity: int = 0
    """Batches or items that its output queue holds; 0 if it has none."""
    lengths: tuple[int, ...] = ()
    """Length of the output queue at each sample."""
    processor: tuple[float, ...] = ()
    """Percent of a processor that all its workers used, at each sample."""
    busy: float | None = None
    """Percent of the time for which a worker made batches, on average; `None` where only `processor` says how busy workers are."""

    @property
    def label(self) -> str:
        """The operator's name in tables."""
        return label(self.type, self.id)

    @property
    def average(self) -> float | None:
        """The mean length of the queue; `None` without samples."""
        return sum(self.lengths) / len(self.lengths) if self.lengths else None

    @property
    def filled(self) -> float | None:
        """Mean length of the queue, in percent of its capacity."""
        return None if self.average is None or not self.capacity else 100 * self.average / self.capacity

    @property
    def empty(self) -> float | None:
        """Percent of the samples in which the queue is empty."""
        return 100 * self.lengths.count(0) / len(self.lengths) if self.lengths else None

    @property
    def used(self) -> float | None:
        """Percent of a processor that its workers used on average."""
        return sum(self.processor) / len(self.processor) if self.processor else None

    @property
    def used_per_worker(self) -> float | None:
        """The same for one worker."""
        return None if self.used is None or not self.workers else self.used / self.workers


class DataPipeline(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline. Its operators are in the order of their numbers, that nearest to the training loop first."""

    source: str
    operators: tuple[PipelineOperator, ...]
    interval_ms: float = 0.0
    """Time between two samples; 0: one for each batch."""
    waited_ms: tuple[float, ...] = ()
    """Time for which the loop waited for each batch."""
    handed_on_ms: tuple[float, ...] = ()
    """Time that handing each batch on took."""

    def operator(self, number: int) -> PipelineOperator | None:
        """The operator of a number."""
        return next((each for each in self.operators if each.id == number), None)

    def queued_children(self, operator: PipelineOperator) -> tuple[int, ...]:
        """Numbers of the operators whose queues it takes its input from; those between that have no queue are passed over."""
        found: list[int] = []
        seen: set[int] = set()
        numbers = list(operator.children)
        while numbers:
            child = self.operator(numbers.pop(0))
            if child is None or child.id in seen:
                continue
            seen.add(child.id)
            if child.capacity:
                found.append(child.id)
            else:
                numbers = [*child.children, *numbers]
        return tuple(found)

    def input_of(self, operator: PipelineOperator) -> PipelineOperator | None:
        """The first operator whose queue it takes its input from."""
        return next((self.operator(number) for number in self.queued_children(operator)), None)


_BOTTLENECKS = ("workers", "slower", "reading", "device", "starved")
"""Kinds of advice that show a bottleneck, the surest first."""


def advice_on(pipeline: DataPipeline, machine_use: float | None) -> tuple[PipelineAdvice, ...]:
    """Remarks on a pipeline: on the use of processors, then on queues.

    Args:
        machine_use: percent of the time for which the processors are busy; `None` if that is not known.
    """
    operators = [operator for operator in pipeline.operators if operator.type not in ONE_THREAD]
    return (
        *(advice for operator in operators for advice in _on_processors(pipeline, operator, machine_use)),
        *(advice for operator in operators for advice in _on_queues(pipeline, operator, machine_use)),
    )


def all_busy(machine_use: float | None) -> str:
    """Why more workers do not help, as a clause; empty if processors are free, or their use is not known."""
    if machine_use is None or machine_use < ALL_BUSY_PERCENT:
        return ""
    return f"more workers do not help while the processors are {machine_use:.0f}% busy"


def bottleneck_of(advice: Iterable[PipelineAdvice]) -> PipelineAdvice | None:
    """The remark that shows the bottleneck; `None` if none does."""
    found = [each for each in advice if each.kind in _BOTTLENECKS]
    return min(found, key=lambda each: _BOTTLENECKS.index(each.kind), default=None)


def measured(pipelines: Iterable[DataPipeline]) -> list[DataPipeline]:
    """The pipelines whose queues, processors or waits were recorded."""
    return [
        pipeline
        for pipeline in pipelines
        if pipeline.waited_ms or any(operator.lengths or operator.processor for operator in pipeline.operators)
    ]


def answers(pipelines: Sequence[DataPipeline], machine_use: float | None) -> tuple[PipelineAnswer, ...]:
    """The numbers and the advice that `explain` and the report show of the first `MOST_PIPELINES` pipelines."""
    return tuple(_answer(pipeline, machine_use) for pipeline in pipelines[:MOST_PIPELINES])


def _answer(pipeline: DataPipeline, machine_use: float | None) -> PipelineAnswer:
    advice = advice_on(pipeline, machine_use)
    bottleneck = bottleneck_of(advice)
    return PipelineAnswer(
        source=pipeline.source,
        waited_ns=1e6 * float(np.mean(pipeline.waited_ms)) if pipeline.waited_ms else None,
        machine_use=machine_use,
        operators=tuple(
            OperatorAnswer(
                name=operator.label,
                workers=operator.workers,
                used_per_worker=operator.used_per_worker,
                capacity=operator.capacity,
                queued=operator.average,
                filled=operator.filled,
                empty=operator.empty,
            )
            for operator in pipeline.operators
        ),
        bottleneck="" if bottleneck is None else bottleneck.operator,
        advice=tuple(sorted(advice, key=lambda each: each is not bottleneck)),
    )


def _on_processors(
    pipeline: DataPipeline, operator: PipelineOperator, machine_use: float | None
) -> Iterator[PipelineAdvice]:
    used, busy, name, workers = operator.used_per_worker, operator.busy, operator.label, operator.workers
    does = "" if used is None else f"uses {used:.0f}% of a processor"
    if busy is None:
        busy = used
    else:  # a worker that waits for the storage is busy, too
        does = f"is busy making batches {busy:.0f}% of the time{' and ' if does else ''}{does}"
    if busy is None:
        return
    if busy > BUSY_PERCENT:
        text = f"each worker of {name} {does}"
        also = "" if all_busy(machine_use) else "or make its work cheaper"
        action = _more(pipeline, operator, machine_use, also)
        yield PipelineAdvice("workers", operator.label, text, action)
    elif busy < IDLE_PERCENT and workers > 1:
        text = f"each of the {workers} workers of {name} {does}: fewer may do as well"
        yield PipelineAdvice("idle", operator.label, text, "")


def _on_queues(
    pipeline: DataPipeline, operator: PipelineOperator, machine_use: float | None
) -> Iterator[PipelineAdvice]:
    before, filled, name = pipeline.input_of(operator), operator.filled, operator.label
    if operator.type == "DeviceQueue":
        if before is not None and before.empty is not None and before.empty > DEVICE_EMPTY_PERCENT:
            text = f"the queue from {before.label} to the device is empty in {before.empty:.0f}% of the samples"
            yield PipelineAdvice("device", before.label, text, _more(pipeline, before, machine_use))
        return
    if before is None:
        idle = operator.busy is not None and operator.busy < IDLE_PERCENT
        if filled is not None and filled <= LEAF_QUEUE_PERCENT and not idle:
            text = f"{name} reads the data, and its queue is filled to {filled:.0f}%"
            action = _more(pipeline, operator, machine_use, "or read from a quicker storage")
            yield PipelineAdvice("reading", operator.label, text, action)
        return
    if filled is None or before.filled is None:
        return
    if before.filled - filled > QUEUE_DIFFERENCE_PERCENT:
        text = f"the input of {name} is filled to {before.filled:.0f}%, its output to {filled:.0f}%: it is slower than {before.label}"
        yield PipelineAdvice("slower", operator.label, text, _more(pipeline, operator, machine_use))
    used = operator.used_per_worker
    starved = before.filled < STARVED_PERCENT or filled - before.filled > QUEUE_DIFFERENCE_PERCENT
    if starved and used is not None and used < IDLE_PERCENT:
        text = f"{name} waits for {before.label}: its input is filled to {before.filled:.0f}%, and its workers use {used:.0f}% of a processor"
        action = _more(pipeline, before, machine_use, f"or raise {_PREFETCH[pipeline.source]}")
        yield PipelineAdvice("starved", before.label, text, action)


def _more(pipeline: DataPipeline, operator: PipelineOperator, machine_use: float | None, also: str = "") -> str:
    """The change to try on an operator that is too slow: more workers, or less work if the processors are all busy; and one that may
    help as well."""
    why = all_busy(machine_use)
    more = (
        f"less work in {operator.type}"
        if why
        else f"{_WORKERS[pipeline.source]} above {operator.workers} for {operator.type}"
    )
    return f"{more}{f', {also}' if also else ''}{f': {why}' if why else ''}"


class _Description(msgspec.Struct, frozen=True):
    """A recorded description of a pipeline, see `stepscope.backends.pipeline_events`."""

    source: Literal["MindSpore"]
    interval_ms: float
    operators: tuple[PipelineOperator, ...]
    """Without samples."""


class _Loader:
    """A DataLoader, and what was recorded of it."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.facts = facts
        self.queue: list[int] = []
        """The number of batches that were ready at each fetch."""
        self.fetches: list[list[int]] = []
        """Begin and duration of each fetch of a worker, in ns."""
        self.used_ms: list[float] = []
        """Processor time of the fetches of which it was recorded."""
        self.waited_ms: list[float] = []


class PipelineBuilder:
    """Gathers pipelines from the events of a process.

    A reading of a DataLoader belongs to the loader whose iteration began last.
    """

    def __init__(self) -> None:
        self._described: _Description | None = None
        self._series: defaultdict[str, list[float]] = defaultdict(list)
        self._loaders: list[_Loader] = []
        """DataLoaders over which the program iterated, the latest last."""
        self.loader_starts: list[int] = []
        """Times at which the program began to iterate over a DataLoader, in ns."""
        self.worker_starts: list[int] = []
        """Times at which DataLoaders started workers that end with a pass over the data, in ns."""
        self._pipeline, self._loader = strings.category(CATEGORY), strings.category("loader")

    def update(self, batch: EventBatch) -> None:
        """Takes events; all but those of pipelines are ignored."""
        events = batch.events
        if self._pipeline:  # 0: the table of categories is full
            self._add(_in_order(events[events["category"] == self._pipeline]), batch)
        if self._loader:
            self._add_of_loaders(_in_order(events[events["category"] == self._loader]), batch)
        if self._loaders:
            spans = events[events["kind"] == int(Kind.SPAN)]
            names = np.unique(spans["name"]).tolist()
            waiting = [name for name in names if strings.text(name).startswith(TORCH_WAITS)]
            _keep(self._loaders[-1].waited_ms, spans["dur"][np.isin(spans["name"], waiting)] / 1e6)

    def _add(self, events: Block, batch: EventBatch) -> None:
        named = (events["kind"] == int(Kind.INSTANT)) & (events["name"] == strings.intern(PIPELINE))
        for event in events[named]:
            with suppress(msgspec.ValidationError):  # of a program's own, or forged: no pipeline
                self._described = msgspec.convert(arguments(batch, event), _Description, strict=False)
        counters = events[events["kind"] == int(Kind.COUNTER)]
        for name in np.unique(counters["name"]).tolist():
            _keep(self._series[strings.text(name)], counters["value"][counters["name"] == name])

    def _add_of_loaders(self, events: Block, batch: EventBatch) -> None:
        begun = np.flatnonzero(events["kind"] == int(Kind.INSTANT)).tolist()
        for first, last in zip([0, *begun], [*begun, len(events)], strict=True):
            some = events[first:last]
            if len(some) and int(some["kind"][0]) == Kind.INSTANT:
                facts = arguments(batch, some[0])
                self._begin(facts)
                if len(self.loader_starts) < MOST_SAMPLES:
                    self.loader_starts.append(int(some["ts"][0]))
                    if facts.get("workers") and facts.get("persistent") is False:
                        self.worker_starts.append(int(some["ts"][0]))
            if self._loaders:
                _keep(self._loaders[-1].queue, _counts(some["value"][some["kind"] == int(Kind.COUNTER)]))
                fetches: Any = some[some["kind"] == int(Kind.SPAN)]
                _keep(self._loaders[-1].fetches, np.stack((fetches["ts"], fetches["dur"]), axis=1))
                used = [processor_ms(arguments(batch, fetch)) for fetch in fetches]
                _keep(self._loaders[-1].used_ms, np.array([ms for ms in used if ms is not None], np.float64))

    def _begin(self, facts: dict[str, Any]) -> None:
        """Notes that the program iterates over a loader: the same one again in each epoch."""
        known = next((loader for loader in self._loaders if loader.facts == facts), None)
        if known is not None:
            self._loaders.remove(known)
        self._loaders.append(known or _Loader(facts))

    @property
    def loaders(self) -> list[dict[str, Any]]:
        """Facts of each DataLoader that the program iterated over, the latest last."""
        return [loader.facts for loader in self._loaders]

    @property
    def ready_batches(self) -> list[int]:
        """The number of batches that were ready at each fetch, of all DataLoaders."""
        return [length for loader in self._loaders for length in loader.queue]

    def pipelines(self) -> tuple[DataPipeline, ...]:
        """The pipelines that were found: MindSpore's, then those of DataLoaders."""
        described = [] if self._described is None else [self._of_mindspore(self._described)]
        return (*described, *map(_of_loader, self._loaders))

    def _of_mindspore(self, described: _Description) -> DataPipeline:
        parents = {child: each.id for each in described.operators for child in each.children}
        return DataPipeline(
            source=described.source,
            interval_ms=described.interval_ms,
            operators=tuple(
                msgspec.structs.replace(
                    each,
                    parent=parents.get(each.id, -1),
                    lengths=tuple(_counts(np.array(self._series[f"{each.label} queue"])).tolist()),
                    processor=tuple(self._series[f"{each.label} processor"]),
                )
                for each in sorted(described.operators, key=lambda each: each.id)
            ),
            waited_ms=tuple(self._series[WAITED]),
            handed_on_ms=tuple(self._series[HANDED_ON]),
        )


def _of_loader(recorded: _Loader) -> DataPipeline:
    """A DataLoader and, if it has any, its workers. Their use of processors is known if it was recorded with each batch."""
    facts, fetches, waits = recorded.facts, recorded.fetches, tuple(recorded.waited_ms)
    workers, prefetch = (_whole(facts.get(name)) for name in ("workers", "prefetch"))
    begin = min((ts for ts, _ in fetches), default=0)
    whole = max((ts + dur for ts, dur in fetches), default=0) - begin
    known = whole > 0 and len(recorded.used_ms) == len(fetches)
    loader = PipelineOperator(id=0, type="DataLoader", workers=1, children=(1,) if workers else ())
    if not workers:
        return DataPipeline(source=TORCH, operators=(loader,), waited_ms=waits)
    name = str(facts.get("dataset", "")).removeprefix("__main__.") or "workers"
    made = PipelineOperator(
        id=1,
        type=name,
        workers=workers,
        parent=0,
        capacity=workers * (prefetch or 2),
        lengths=tuple(recorded.queue),
        processor=(100 * 1e6 * sum(recorded.used_ms) / whole,) if known else (),
        busy=100 * sum(dur for _, dur in fetches) / whole / workers if whole > 0 else None,
    )
    return DataPipeline(source=TORCH, operators=(loader, made), waited_ms=waits)


def processor_ms(facts: dict[str, Any]) -> float | None:
    """Processor time of a batch that a worker made, by the facts of its span; `None` if it was not recorded."""
    used = facts.get("used")
    found = cast("dict[str, Any]", used).get("processor_ms") if isinstance(used, dict) else None
    return float(found) if isinstance(found, int | float) else None


def _in_order(events: Block) -> Block:
    return events[np.argsort(events["ts"], kind="stable")]


def _keep(to: list[Any], values: NDArray[Any]) -> None:
    room = MOST_SAMPLES - len(to)
    to += (values[np.abs(values) < MOST_READING] if values.ndim == 1 else values)[:room].tolist()


def _counts(values: NDArray[Any]) -> NDArray[np.int64]:
    """Readings as numbers of items, without those that are none."""
    counts: NDArray[np.int64] = np.clip(values[np.isfinite(values)], 0, MOST_ITEMS).astype(np.int64)
    return counts


def _whole(value: object) -> int:
    return value if isinstance(value, int) and 0 < value < MOST_ITEMS else 0

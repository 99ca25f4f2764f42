"""The input of rules for a rank: facts of its steps and a few small tables, gathered in one pass over its events."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import compress
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from stepscope.analysis.findings import DeviceAnswer, Place
from stepscope.analysis.reading.recording import Rank, facts_builders, finished
from stepscope.analysis.tables.allocations import MemoryTable
from stepscope.analysis.tables.collectives import CollectiveTable
from stepscope.analysis.tables.data_pipeline import PipelineBuilder, processor_ms
from stepscope.analysis.tables.devices import MOST_SPANS, DeviceBuilder, answers
from stepscope.analysis.tables.flops import FlopsTable
from stepscope.analysis.tables.parallel_layout import has_groups
from stepscope.analysis.thresholds import COMMON, FEWEST_STEPS
from stepscope.backends.counters.host import HostBackend
from stepscope.backends.pipeline_events import CATEGORY
from stepscope.runtime import _core
from stepscope.runtime.display.code_places import in_library
from stepscope.runtime.display.text_table import human_count
from stepscope.runtime.events import strings
from stepscope.runtime.events.arguments import arguments as arguments
from stepscope.runtime.events.intervals import Interval
from stepscope.runtime.events.record import Block, EventBatch, Flag, Kind, distinct, join_batches
from stepscope.runtime.events.survey import OPERATORS_CATEGORY
from stepscope.runtime.observers import processor_demand, task_runs, task_waits
from stepscope.runtime.windows.step_facts import MOST_READ, SIGNAL, Facts, Phase, class_of
from stepscope.runtime.windows.step_parts import durations as durations
from stepscope.runtime.windows.step_statistics import first_steps

MOST_SAMPLES = 200_000
"""Stack samples that are kept: three hours at 20 a second."""
LATE_NS = 1_000_000
"""ns after the end of a call in which a sample may be taken that was requested during the call."""
MOST_TASKS = 200_000
LONGEST_NS = 1 << 55
_FARTHEST_NS = 1 << 61
COMPILATIONS = ("_compile.compile_inner", "compile_fx.<locals>.bw_compiler (")
"""Prefixes of the names of torch's spans in which torch.compile compiles a function, or its backward."""
BATCH = 1 << 14
"""Events that are read together, at most, unless they were written together."""
_COMPREHENSIONS = re.compile(r"(?:(?:\.<locals>)?(?:^|\.)<(?:(?:list|set|dict)comp|genexpr)>)+$")
"""The end of a function's name for its comprehensions, which have frames of their own up to Python 3.11, and generator expressions."""
_Handler: TypeAlias = "Callable[[EventBatch, Block], None]"


class Sample(msgspec.Struct, frozen=True, gc=False):
    """A sample of the stack of the thread that steps."""

    ts: int
    stack: str
    """Functions with file and line, outermost first, separated by `;`."""
    state: str
    """State of the thread, as the kernel names it: `R` runs, `S` sleeps, `D` waits for a disk."""
    other: str
    """Another thread that was on a processor, with what it was in."""


class Collection(msgspec.Struct, frozen=True, gc=False):
    """A garbage collection."""

    ts: int
    dur: int
    generation: int


class TaskRun(msgspec.Struct, frozen=True, gc=False):
    """A task of asyncio, or a callback of a loop that is none."""

    ts: int
    dur: int
    name: str
    track: int
    open: bool


class Call(msgspec.Struct, frozen=True, gc=False):
    """A call that saves, logs, or forces a write."""

    ts: int
    dur: int
    name: str
    place: str
    """Function, file and line of the program that calls; empty if that was not recorded."""


class Fetch(msgspec.Struct, frozen=True, gc=False):
    """A batch that a worker of a loader made."""

    ts: int
    dur: int
    items: int
    slowest_ns: int
    """Time of its slowest item."""
    index: str
    """Index of that item in the data set."""
    processor_ns: int = 0
    """Processor time of the batch; 0 if that was not recorded."""


class Row(msgspec.Struct, frozen=True):
    """A name of spans with its sums."""

    name: str
    category: str
    count: int
    total: int
    self: int
    p50: float


def _has_torchs_operators(events: Block) -> bool:
    """Whether there are operators of torch's engine, which have arguments. Those that arrive live have none, or one inside of the record."""
    detailed = (events["args_len"] > 0) & (events["flags"] & int(Flag.ARG_INLINE) == 0)
    names = distinct(events["name"][detailed & (events["category"] == OPERATORS_CATEGORY)])
    return any(strings.text(name).startswith("aten::") for name in names)


class RankSummary:
    """The summary of one process. Everything but the facts is small, however long the run."""

    def __init__(self, rank: Rank) -> None:
        self.recorded = rank
        self.rank = rank.rank
        self.name = rank.name
        self.samples: list[Sample] = []
        self.collections: list[Collection] = []
        self.tasks: list[TaskRun] = []
        self.callbacks: list[TaskRun] = []
        """Long callbacks of asyncio's loops that belong to no task. Their track is the thread's."""
        self.calls: dict[Phase, list[Call]] = {}
        """Calls by their phase."""
        self.compilations: list[Call] = []
        """Compilations of torch.compile, of forward and of backward."""
        self.fetches: list[Fetch] = []
        """Batches of workers of which the slowest item is known."""
        self.suspended: list[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]] = []
        self.not_finite: dict[str, int] = {}
        """Counters whose values are NaN or infinite, for the most part, from some time on; and that time."""
        self._finite_again: Counter[str] = Counter()
        self.thread_cpu: dict[str, list[tuple[int, float]]] = {}
        self.queues: dict[str, list[tuple[int, float]]] = {}
        """Lengths of asyncio's queues, by where they were made."""
        self.task_waits: dict[str, list[tuple[int, float]]] = {}
        """Readings of how many tasks waited, by `task function: waiting function (file:line)`."""
        self.demand: dict[str, list[tuple[int, float]]] = {}
        """ns that the process and its children ran and waited for a processor, and how many processors there are."""
        self.events = 0
        self.from_torchs_engine = False
        """Whether torch's profiler recorded operators, which holds tensors of the program until a window ends."""
        self._texts: dict[str, str] = {}
        self._suspended = strings.intern("suspended")
        handlers: list[tuple[Kind, str, _Handler]] = [
            (Kind.COUNTER, task_runs.QUEUES, _by_name(self.queues)),
            (Kind.COUNTER, task_waits.WAITS, _by_name(self.task_waits)),
            (Kind.COUNTER, processor_demand.CATEGORY, _by_name(self.demand)),
            (Kind.COUNTER, "thread cpu", _by_name(self.thread_cpu)),
            (Kind.INSTANT, "stack sample", self._sample),
            (Kind.SPAN, "gc", self._collection),
            (Kind.SPAN, "checkpoint", self._calls(Phase.CHECKPOINT)),
            (Kind.SPAN, "logging", self._calls(Phase.LOGGING)),
            (Kind.SPAN, "forced write", self._calls(Phase.FORCED_WRITE)),
            (Kind.SPAN, "loader", self._fetch),
            (Kind.SPAN, "user_annotation", self._compilation),
            (Kind.SPAN, "task run", _runs(self.tasks)),
            (Kind.SPAN, task_runs.CALLBACKS, _runs(self.callbacks)),
        ]
        self._handlers = [
            (kind, number, handle) for kind, category, handle in handlers if (number := strings.category(category))
        ]
        self._readings = [category for kind, category, _ in self._handlers if kind == Kind.COUNTER]
        self._readings += [number for name in (SIGNAL, CATEGORY, "loader") if (number := strings.category(name))]
        table = _core.Aggregates()
        self.flops = FlopsTable()
        self.memory = MemoryTable()
        self.collectives = CollectiveTable()
        self.collectives.in_groups = has_groups(rank.metadata)
        # A trace of torch is held as a whole when it is read; a run of ours may be as long as any.
        most_spans = MOST_SPANS << 4 if rank.foreign else MOST_SPANS
        builders = facts_builders()
        devices: defaultdict[int, DeviceBuilder] = defaultdict(lambda: DeviceBuilder(most_spans))
        pipelines = PipelineBuilder()
        impossible = read = 0
        ends, begins = rank.watermarks()
        for batch in join_batches(rank.batches(), BATCH):
            events = possible(batch.events)
            impossible += len(batch) - len(events)
            builders[batch.window].update(events)
            read += len(batch)
            complete_ns = int(begins[np.searchsorted(ends, read, side="right")])
            builders[batch.window].finish_until(complete_ns, divide=False)
            devices[batch.window].update(events)
            table.update(events)
            checked = EventBatch(batch.source, batch.window, events, batch.args)
            self.flops.update(checked)
            self.memory.update(checked)
            self.collectives.update(checked)
            pipelines.update(checked)
            self._gather(checked)
            self.from_torchs_engine = self.from_torchs_engine or _has_torchs_operators(events)
            self.events += len(events)
        self.pipelines = pipelines.pipelines()
        """Data pipelines: of MindSpore's data sets, and of DataLoaders."""
        self.loaders = pipelines.loaders
        """Facts of each DataLoader that the program iterated over, the latest last."""
        self.loader_starts = pipelines.loader_starts
        """Times at which the program began to iterate over a DataLoader, in ns."""
        self.worker_starts = pipelines.worker_starts
        """Times at which DataLoaders started workers that end with a pass over the data, in ns."""
        self.queue = pipelines.ready_batches
        """The number of batches that were ready at each fetch, of all DataLoaders."""
        facts = rank.known_steps
        self.facts: Facts = finished(rank, builders) if facts is None else facts
        self.not_finite = {name: ts for name, ts in self.not_finite.items() if self._finite_again[name] < 0}
        self.notes = rank.notes
        """Sentences: data that were left out, and why."""
        if impossible:
            self.notes += (f"{human_count(impossible, 'event')} left out, at times that no clock shows",)
        self.rows = [
            Row(strings.text(name), strings.text(category), count, total, self_, p50)
            for name, category, count, total, self_, _, _, p50, *_ in table.rows()
        ]
        self.counter_means = {
            strings.text(name): mean
            for name, category, _, _, _, _, mean, _ in table.counter_rows()
            if strings.text(category) == HostBackend.category
        }
        """Means of the counters of `HostBackend`."""
        self.judged_steps: Facts = judged_steps_of(self.facts)
        self.devices: tuple[DeviceAnswer, ...] = answers(
            (devices[number], steps) for number, steps in self._judged_times(sorted(devices))
        )

    def _judged_times(self, windows: list[int]) -> Iterator[tuple[int, Interval | None]]:
        """From when to when each window has steps that are judged; where there are too few to judge any, all of its time is."""
        judged = self.judged_steps if len(self.facts) >= FEWEST_STEPS else self.judged_steps[:0]
        for window in windows:
            steps = judged[judged["window"] == window]
            if len(steps):
                yield window, (int(steps["begin"].min()), int(steps["end"].max()))
            elif not len(judged):
                yield window, None

    @property
    def has_python(self) -> bool:
        """Whether Python functions were recorded, as torch's `with_stack` does."""
        return any(row.category == "python_function" for row in self.rows)

    @property
    def step_ns(self) -> float:
        """Median of steady steps."""
        return float(np.median(durations(self.judged_steps))) if len(self.judged_steps) else 0.0

    def phase(self, phase: Phase) -> NDArray[np.int64]:
        """ns of a phase in each steady step."""
        return self.judged_steps["phases"][:, int(phase)]

    def communication(self) -> NDArray[np.int64]:
        """ns of each steady step in collectives, or waiting for those that another thread runs."""
        return self.phase(Phase.COMMUNICATION) + self.phase(Phase.COMMUNICATION_ELSEWHERE)

    def uncovered(self) -> NDArray[np.int64]:
        """ns of each steady step that are in no phase."""
        return durations(self.judged_steps) - self.judged_steps["phases"].sum(axis=1)  # type: ignore[no-any-return]

    def row(self, *names: str) -> list[Row]:
        """Rows whose name begins with one of these."""
        return [row for row in self.rows if row.name.startswith(names)]

    def largest_span(self) -> str:
        """The name of the program's own spans in steps that have the most time of their own; empty if there are none."""
        longest = durations(self.judged_steps).max(initial=0)  # a span around several steps is not in them
        own = [row for row in self.rows if class_of(row.name, row.category) == Phase.SPAN and row.p50 <= longest]
        return max(own, key=lambda row: row.self).name if own else ""

    def samples_in_steps(self, steps: Facts | None = None) -> list[Sample]:
        """Samples taken in steps, by default in those that are judged."""
        steps = self.judged_steps if steps is None else steps
        steps = steps[np.argsort(steps["begin"])]
        return samples_in(self.samples, np.stack((steps["begin"], steps["end"]), axis=1), late=0)

    def _gather(self, batch: EventBatch) -> None:
        events = batch.events
        kinds, categories = events["kind"], events["category"]
        for kind, category, handle in self._handlers:
            chosen = np.flatnonzero((kinds == kind) & (categories == category))
            if len(chosen):
                handle(batch, events[chosen])
        counters = events[kinds == Kind.COUNTER]
        counters = counters[~np.isin(counters["category"], self._readings)]
        odd = ~np.isfinite(counters["value"]) | (counters["flags"] & int(Flag.NO_NUMBER) != 0)
        self._note_not_finite(counters[odd])
        if self.not_finite:
            self._note_finite_again(counters[~odd], counters[odd])
        waits = events[(kinds == Kind.SPAN) & (events["name"] == self._suspended)]
        if len(waits):
            self.suspended.append((waits["ts"].copy(), waits["dur"].copy(), waits["track"].copy()))

    def _note_not_finite(self, counters: Block) -> None:
        names, first = np.unique(counters["name"], return_index=True)
        for name, ts in zip(names.tolist(), counters["ts"][first].tolist(), strict=True):
            self.not_finite.setdefault(strings.text(name), ts)

    def _note_finite_again(self, finite: Block, odd: Block) -> None:
        """Counts for each counter the finite values since its first one that is not, less those that are not."""
        for name, first in self.not_finite.items():
            number = strings.intern(name)
            more = int(((finite["name"] == number) & (finite["ts"] > first)).sum())
            self._finite_again[name] += more - int((odd["name"] == number).sum())

    def _sample(self, batch: EventBatch, events: Block) -> None:
        for event in events[: MOST_SAMPLES - len(self.samples)]:
            facts = arguments(batch, event)
            texts = [str(facts.get(name, "")) for name in ("stack", "state", "other")]
            # The same stacks come again and again.
            self.samples.append(Sample(int(event["ts"]), *(self._texts.setdefault(text, text) for text in texts)))

    def _collection(self, batch: EventBatch, events: Block) -> None:
        for event in events[: MOST_SAMPLES - len(self.collections)]:
            generation = int(arguments(batch, event).get("generation", -1))
            self.collections.append(Collection(int(event["ts"]), int(event["dur"]), generation))

    def _calls(self, phase: Phase) -> _Handler:
        found = self.calls.setdefault(phase, [])

        def handle(batch: EventBatch, events: Block) -> None:
            events = events[: MOST_SAMPLES - len(found)]
            for event, name in zip(events, Rank.names(events["name"]), strict=True):
                place = str(arguments(batch, event).get("place", ""))
                found.append(Call(int(event["ts"]), int(event["dur"]), name, self._texts.setdefault(place, place)))

        return handle

    def _compilation(self, _: EventBatch, events: Block) -> None:
        for number in distinct(events["name"]):
            name = strings.text(number)
            if name.startswith(COMPILATIONS):
                these = events[events["name"] == number][: MOST_SAMPLES - len(self.compilations)]
                times = zip(these["ts"].tolist(), these["dur"].tolist(), strict=True)
                self.compilations += [Call(ts, dur, name, "") for ts, dur in times]

    def _fetch(self, batch: EventBatch, events: Block) -> None:
        for event in events[: MOST_SAMPLES - len(self.fetches)]:
            facts = arguments(batch, event)
            slowest: dict[str, Any] = facts.get("slowest") or {}
            if isinstance(slowest.get("ms"), float):
                ns, index = int(slowest["ms"] * 1e6), str(slowest.get("index"))
                items, used = int(facts.get("items", 0)), int((processor_ms(facts) or 0.0) * 1e6)
                self.fetches.append(Fetch(int(event["ts"]), int(event["dur"]), items, ns, index, used))


def possible(events: Block) -> Block:
    """Leaves out events at times that no clock shows, and those longer than a year, so that sums of the others are right."""
    ts, took = events["ts"], events["dur"]
    odd = (
        (ts < -_FARTHEST_NS)
        | (ts > _FARTHEST_NS)
        | (((took < -LONGEST_NS) | (took > LONGEST_NS)) & (events["kind"] == Kind.SPAN))
    )
    return events[~odd] if odd.any() else events


def _runs(to: list[TaskRun]) -> _Handler:
    def handle(batch: EventBatch, events: Block) -> None:
        events = events[: MOST_TASKS - len(to)]
        opened = (events["flags"] & int(Flag.OPEN) != 0).tolist()
        columns = events["ts"].tolist(), events["dur"].tolist(), Rank.names(events["name"]), events["track"].tolist()
        to.extend(map(TaskRun, *columns, opened))

    return handle


def _by_name(to: dict[str, list[tuple[int, float]]]) -> _Handler:
    def handle(batch: EventBatch, events: Block) -> None:
        for name in np.unique(events["name"]).tolist():
            these = events[(events["name"] == name) & (np.abs(events["value"]) < MOST_READ)]
            readings = zip(these["ts"].tolist(), these["value"].tolist(), strict=True)
            to.setdefault(strings.text(name), []).extend(readings)

    return handle


def judged_steps_of(facts: Facts) -> Facts:
    """Steps that are judged: all but the first ones, when caches are cold and code compiles."""
    return facts[first_steps(len(facts)) :]


def samples_in(samples: list[Sample], intervals: ArrayLike, late: int = LATE_NS) -> list[Sample]:
    """Samples that were asked for in one of the intervals, pairs of begin and end which are in order.

    Args:
        late: ns after the end until which they may be taken: a thread that runs no Python takes them at its end.
    """
    begin, end = np.asarray(intervals, np.int64).reshape(-1, 2).T
    at = np.array([sample.ts for sample in samples], np.int64)
    index = np.searchsorted(begin, at, side="right") - 1
    if not len(begin):
        return []
    inside = (index >= 0) & (at < end[np.maximum(index, 0)] + late)
    return list(compress(samples, inside.tolist()))


def program_functions(stack: str) -> dict[tuple[str, str], int]:
    """The program's functions in a sampled stack, by name and file, outermost first, each with its line."""
    found: dict[tuple[str, str], int] = {}
    for text in stack.split(";"):
        frame = parse_frame(text)
        if frame is not None and not in_library(frame.file):
            function = _COMPREHENSIONS.sub("", frame.function) or "<module>"
            found.pop((function, frame.file), None)
            found[function, frame.file] = frame.line
    return found


def place_of(stack: str) -> Place | None:
    """The innermost function of the program in a sampled stack: the last that is in no library."""
    own = program_functions(stack)
    return Place(*list(own)[-1], list(own.values())[-1]) if own else None


def parse_frame(text: str) -> Place | None:
    """Reads `function (file:line)`; `None` if it is not of that form."""
    function, found, rest = text.rpartition(" (")
    file, colon, line = rest.rstrip(")").rpartition(":")
    if not found or not colon or not line.isdigit():
        return None
    return Place(function, file, int(line))


def hottest(samples: list[Sample]) -> Place | None:
    """The function of the program in which most samples are, with its share."""
    return next(iter(most_sampled(samples, 1)), None)


def most_sampled(samples: list[Sample], most: int) -> tuple[Place, ...]:
    """The functions of the program in which most samples are, each at the line where most of its samples are, with its share."""
    counted: Counter[tuple[str, str]] = Counter()
    lines: dict[tuple[str, str], Counter[int]] = {}
    for sample in samples:
        place = place_of(sample.stack)
        if place is not None:
            key = (place.function, place.file)
            counted[key] += 1
            lines.setdefault(key, Counter())[place.line] += 1
    return tuple(
        Place(*key, lines[key].most_common(1)[0][0], count / len(samples)) for key, count in counted.most_common(most)
    )


def lines_of_loop(samples: list[Sample], most: int) -> tuple[Place, ...]:
    """The lines with most samples, each with its share, of the innermost function that nearly all samples are in; what that calls counts
    for the line that calls it."""
    stacks = [program_functions(sample.stack) for sample in samples]
    counted = Counter(function for stack in stacks for function in stack)
    common = [function for function in counted if counted[function] >= COMMON * len(samples)]
    if not common:
        return ()
    loop = max(common, key=lambda function: max(list(stack).index(function) for stack in stacks if function in stack))
    lines = Counter(stack[loop] for stack in stacks if loop in stack)
    return tuple(Place(*loop, line, count / len(samples)) for line, count in lines.most_common(most))

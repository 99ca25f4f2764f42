"""What rules see of a rank: facts of its steps and a few small tables, gathered in one pass over its events."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.analysis.devices import MOST_SPANS, DeviceBuilder, answers
from stepscope.analysis.findings import DeviceAnswer, Place
from stepscope.analysis.recording import Rank, finished
from stepscope.runtime import _core, processor_demand, queue_lengths, strings
from stepscope.runtime.aggregates import Aggregates
from stepscope.runtime.events import EventBatch, Flag, Kind
from stepscope.runtime.step_facts import SIGNAL, Facts, Phase, StepFactsBuilder
from stepscope.runtime.step_parts import durations as durations
from stepscope.runtime.step_statistics import first_steps

MOST_SAMPLES = 200_000
"""Stack samples that are kept: three hours at 20 a second."""
LATE_NS = 1_000_000
"""How long after a call a sample may be taken that was asked for meanwhile."""
MOST_TASKS = 200_000
COMMAND = ("/bin/stepscope", "/stepscope/__main__.py")
"""Files in which every stack of a program begins that `stepscope run` runs."""


class Sample(msgspec.Struct, frozen=True, gc=False):
    """A look at the stack of the thread that steps."""

    ts: int
    stack: str
    """Functions with file and line, outermost first, separated by `;`."""
    state: str
    """Of the thread, as the kernel names it: `R` runs, `S` sleeps, `D` waits for a disk."""
    other: str
    """Another thread that was on a processor, with what it was in."""


class Loader(msgspec.Struct, frozen=True, gc=False):
    """A DataLoader that was iterated over."""

    ts: int
    facts: dict[str, Any]


class Collection(msgspec.Struct, frozen=True, gc=False):
    """A garbage collection."""

    ts: int
    dur: int
    generation: int


class TaskRun(msgspec.Struct, frozen=True, gc=False):
    """A task of asyncio, or a span of one."""

    ts: int
    dur: int
    name: str
    track: int
    open: bool


class Row(msgspec.Struct, frozen=True):
    """A name of spans with its sums."""

    name: str
    category: str
    count: int
    total: int
    self: int
    p50: float


class RankSummary:
    """Of one process. Everything but the facts is small whatever the run's length."""

    def __init__(self, rank: Rank) -> None:
        self.of = rank
        self.rank = rank.rank
        self.name = rank.name
        self.samples: list[Sample] = []
        self.loaders: list[Loader] = []
        self.collections: list[Collection] = []
        self.tasks: list[TaskRun] = []
        self.forced_writes: list[tuple[int, int]] = []
        """Begin and end of each."""
        self.suspended: list[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]] = []
        self.not_finite: dict[str, int] = {}
        """Counters that had a value that is no number: when first."""
        self.queue: list[float] = []
        """Batches that were ready at each fetch."""
        self.thread_cpu: dict[str, list[tuple[int, float]]] = {}
        self.queues: dict[str, list[tuple[int, float]]] = {}
        """Lengths of asyncio's queues, by where they were made."""
        self.demand: dict[str, list[tuple[int, float]]] = {}
        """ns on processors and of waiting for one, by whose they are; and how many processors there are."""
        self.counters: dict[str, list[tuple[int, float]]] = {}
        self.events = 0
        self.kinds: Counter[str] = Counter()
        table = Aggregates()
        builders: dict[int, StepFactsBuilder] = {}
        devices: dict[int, DeviceBuilder] = {}
        # A trace of torch is held as a whole when it is read; a run of ours may be as long as any.
        most_spans = MOST_SPANS << 4 if rank.foreign else MOST_SPANS
        for batch in rank.batches():
            builder = builders.get(batch.window)
            if builder is None:
                builder = builders[batch.window] = StepFactsBuilder(late=True)
                devices[batch.window] = DeviceBuilder(most_spans)
            builder.update(batch.events)
            devices[batch.window].update(batch.events)
            table.update(batch.events)
            self._look(batch)
            self.events += len(batch)
        self.facts: Facts = finished(rank, builders)
        self.rows = [
            Row(strings.text(name), strings.text(category), count, total, self_, p50)
            for name, category, count, total, self_, _, _, p50, _, _ in table.rows()
        ]
        self.steady: Facts = steady_of(self.facts)
        self.devices: tuple[DeviceAnswer, ...] = answers(devices[number] for number in sorted(devices))

    @property
    def step_ns(self) -> float:
        """Median of steady steps."""
        return float(np.median(durations(self.steady))) if len(self.steady) else 0.0

    def phase(self, phase: Phase) -> NDArray[np.int64]:
        """ns of a phase in each steady step."""
        return self.steady["phases"][:, int(phase)]

    def communication(self) -> NDArray[np.int64]:
        """ns of each steady step in collectives, or waiting for those that another thread runs."""
        return self.phase(Phase.COMMUNICATION) + self.phase(Phase.COMMUNICATION_ELSEWHERE)

    def uncovered(self) -> NDArray[np.int64]:
        """ns of each steady step that are in no phase."""
        return durations(self.steady) - self.steady["phases"].sum(axis=1)  # type: ignore[no-any-return]

    def row(self, *names: str) -> list[Row]:
        """Rows whose name begins with one of these."""
        return [row for row in self.rows if row.name.startswith(names)]

    def samples_within(self, steps: Facts | None = None) -> list[Sample]:
        """Samples taken in steps, by default the steady ones."""
        steps = self.steady if steps is None else steps
        if not len(steps):
            return []
        order = np.argsort(steps["begin"])
        begin, end = steps["begin"][order], steps["end"][order]
        kept: list[Sample] = []
        for sample in self.samples:
            index = int(np.searchsorted(begin, sample.ts, side="right")) - 1
            if index >= 0 and sample.ts < end[index]:
                kept.append(sample)
        return kept

    def _look(self, batch: EventBatch) -> None:
        events = batch.events
        kinds = events["kind"]
        rare = np.flatnonzero((kinds == Kind.INSTANT) | (kinds == Kind.COUNTER))
        for index in rare.tolist():
            self._point(batch, events[index])
        for category, take in (
            ("gc", self._collection),
            ("task run", self._task),
            ("forced write", self._forced_write),
        ):
            number = strings.category(category)
            for index in np.flatnonzero((kinds == Kind.SPAN) & (events["category"] == number)).tolist():
                take(batch, events[index])
        waits = events[(kinds == Kind.SPAN) & (events["name"] == strings.intern("suspended"))]
        if len(waits):
            self.suspended.append((waits["ts"].copy(), waits["dur"].copy(), waits["track"].copy()))

    def _point(self, batch: EventBatch, event: Any) -> None:
        category, name = strings.text(int(event["category"])), strings.text(int(event["name"]))
        ts = int(event["ts"])
        if int(event["kind"]) == Kind.COUNTER:
            value = float(event["value"])
            if category == SIGNAL:
                return
            if category == "loader":
                self.queue.append(value)
            elif category == queue_lengths.CATEGORY:
                self.queues.setdefault(name, []).append((ts, value))
            elif category == processor_demand.CATEGORY:
                self.demand.setdefault(name, []).append((ts, value))
            elif category == "thread cpu":
                self.thread_cpu.setdefault(name, []).append((ts, value))
            else:
                if int(event["flags"]) & Flag.NO_NUMBER or not np.isfinite(value):
                    self.not_finite.setdefault(name, ts)
                self.counters.setdefault(name, []).append((ts, value))
        elif category == "stack sample" and len(self.samples) < MOST_SAMPLES:
            facts = arguments(batch, event)
            self.samples.append(
                Sample(ts, str(facts.get("stack", "")), str(facts.get("state", "")), str(facts.get("other", "")))
            )
        elif category == "loader":
            self.loaders.append(Loader(ts, arguments(batch, event)))

    def _collection(self, batch: EventBatch, event: Any) -> None:
        self.collections.append(
            Collection(int(event["ts"]), int(event["dur"]), int(arguments(batch, event).get("generation", -1)))
        )

    def _forced_write(self, batch: EventBatch, event: Any) -> None:
        if len(self.forced_writes) < MOST_SAMPLES:
            self.forced_writes.append((int(event["ts"]), int(event["ts"] + event["dur"])))

    def _task(self, batch: EventBatch, event: Any) -> None:
        if len(self.tasks) < MOST_TASKS:
            name = strings.text(int(event["name"]))
            opened = bool(int(event["flags"]) & Flag.OPEN)
            self.tasks.append(TaskRun(int(event["ts"]), int(event["dur"]), name, int(event["track"]), opened))


def arguments(batch: EventBatch, event: Any) -> dict[str, Any]:
    """The arguments of an event."""
    if int(event["flags"]) & Flag.ARG_INLINE:
        return {strings.text(int(event["args_at"])): int(event["args_len"])}
    at, length = int(event["args_at"]), int(event["args_len"])
    return dict(_core.decode_arguments(batch.args, at, length)) if length else {}


def steady_of(facts: Facts) -> Facts:
    """Steps that are judged: without the first ones, when caches are cold and code compiles."""
    return facts[first_steps(len(facts)) :]


def within(samples: list[Sample], intervals: list[tuple[int, int]]) -> list[Sample]:
    """Samples that were asked for in one of the intervals, which are in order: a thread that runs no Python takes them at its end."""
    begin, end = np.array(intervals, np.int64).reshape(-1, 2).T
    at = np.array([sample.ts for sample in samples], np.int64)
    index = np.searchsorted(begin, at, side="right") - 1
    if not len(begin):
        return []
    inside = (index >= 0) & (at < end[np.maximum(index, 0)] + LATE_NS)
    return [sample for sample, taken in zip(samples, inside.tolist(), strict=True) if taken]


def own_functions(stack: str) -> dict[tuple[str, str], int]:
    """Functions of the program's own in a sampled stack by name and file, outermost first, each with the line it was at."""
    found: dict[tuple[str, str], int] = {}
    for text in stack.split(";"):
        frame = parse_frame(text)
        if frame is not None and not in_library(frame.file):
            found.pop((frame.function, frame.file), None)
            found[frame.function, frame.file] = frame.line
    return found


def place_of(stack: str) -> Place | None:
    """The innermost function of the program's own in a sampled stack: the last that is in no library."""
    own = own_functions(stack)
    return Place(*list(own)[-1], list(own.values())[-1]) if own else None


def in_library(file: str) -> bool:
    """Whether a file belongs to Python, to a package that was installed, or to the command `stepscope`."""
    installed = "site-packages" in file or "dist-packages" in file or "/lib/python3" in file
    return installed or file.startswith("<") or file.endswith(COMMAND)


def parse_frame(text: str) -> Place | None:
    """`function (file:line)`."""
    function, found, rest = text.rpartition(" (")
    file, colon, line = rest.rstrip(")").rpartition(":")
    if not found or not colon or not line.isdigit():
        return None
    return Place(function, file, int(line))


def hottest(samples: list[Sample]) -> Place | None:
    """The place of the program's own where most samples are, with its share."""
    return next(iter(most_sampled(samples, 1)), None)


def most_sampled(samples: list[Sample], most: int) -> tuple[Place, ...]:
    """So many functions of the program's own, each at the line where most of its samples are, with its share."""
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

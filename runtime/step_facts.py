"""Facts of a step: where its time went, each nanosecond once, and what the machine said meanwhile.

One record for each step, made of the events of the thread that steps. It is the same whether the events stream by or are read
back from a file: both go through `StepFactsBuilder`.
"""

from __future__ import annotations

import itertools
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stepscope.runtime import _core, strings
from stepscope.runtime.events import Block, Kind

Facts: TypeAlias = NDArray[np.void]
"""One-dimensional array of `FACTS_DTYPE`."""
Times: TypeAlias = NDArray[np.int64]


class Phase(IntEnum):
    """Kinds of time on the thread that steps. Where several are open at once, the first of them has the time."""

    GARBAGE_COLLECTION = 0
    COMMUNICATION = 1
    CHECKPOINT = 2
    FORCED_WRITE = 3
    DATA = 4
    OPTIMIZER = 5
    BACKWARD = 6
    COPY = 7
    FORWARD = 8
    SUSPENDED = 9
    """A task of asyncio waits."""
    BACKWARD_ELSEWHERE = 10
    """autograd works on a thread of its own, and nothing else is open here."""
    COMMUNICATION_ELSEWHERE = 11
    """A collective goes on in another thread, as gloo's do, and nothing else is open here."""
    SPAN = 12
    """Spans of the program, without what is in them of the above."""


class Device(IntEnum):
    """Kinds of time on devices. Where several go on at once, on whatever stream, the first of them has the time."""

    COMPUTE = 0
    """Kernels, and sets of memory, which move nothing between host and device."""
    COMMUNICATION = 1
    """Kernels of collectives."""
    COPY = 2


SIGNALS = ("cpu_ns", "run_queue_ns", "resident_bytes", "page_faults", "preemptions", "written_bytes")
"""Readings of the thread that steps (its process, of memory), taken when a step begins."""
SIGNAL = "step signal"
"""Category of the counters that hold them."""
_SIGNAL = strings.category(SIGNAL)

FACTS_DTYPE = np.dtype(
    [
        ("step", "<i8"),
        ("begin", "<i8"),
        ("end", "<i8"),
        ("window", "<i8"),
        ("phases", "<i8", (len(Phase),)),
        ("device", "<i8", (len(Device),)),
        ("operators", "<i8"),
        ("operator_ns", "<i8"),
        ("collections", "<i8"),
        *((name, "<f8") for name in SIGNALS),
    ]
)
"""Times in ns. `operators` and `operator_ns` are of the outermost operators on the thread that steps. Signals are what was added
during the step, but for `resident_bytes`, which is what there was at its end; NaN where there was no reading."""

SETTLED = 16
"""Steps that are kept open behind the newest: what is recorded of them may still come."""
MANY = 32 * SETTLED
"""Open steps from which on the oldest are settled."""

MUCH = 1 << 14
"""Intervals from which on fewer steps are settled at once, as what fits a processor's cache is quicker."""
MOST_OPEN = 1 << 16
"""Open steps from which on the oldest are settled, whatever has yet to come."""
MANY_INTERVALS = 1 << 20
"""Intervals that are held, from which on the older half is settled: 32 MB."""

_IGNORED = 255
_INNER = 100
"""Class of spans of the program that lie in others, which may be left out."""
_FOREVER = np.iinfo(np.int64).max
_TS, _STEP, _ON = range(3)
"""Columns of marks: when, which step, on which track."""
_CLASS, _TRACK, _BEGIN, _END = range(4)
"""Columns of what spans cover: arrays without named fields are quicker to join."""
_SUMS = ("phases", "device", "operators", "operator_ns", "collections")
DEVICE_CLASS = 200
"""What `class_of` adds to a `Device`."""
_ELSEWHERE = {Phase.BACKWARD: Phase.BACKWARD_ELSEWHERE, Phase.COMMUNICATION: Phase.COMMUNICATION_ELSEWHERE}
"""What spans of other threads count as, of those that count at all."""
_COLLECTIVES = ("c10d::", "gloo:", "nccl:", "mpi:", "hccl:", "record_param_comms")
_KERNELS = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "concurrent_kernel"})


def class_of(name: str, category: str) -> int:
    """The `Phase` of a span by its name and category; `DEVICE_CLASS` and more for what devices do; 255: none."""
    if category in _KERNELS:
        if category == "gpu_memcpy":
            return DEVICE_CLASS + Device.COPY
        return DEVICE_CLASS + (Device.COMMUNICATION if "nccl" in name.lower() else Device.COMPUTE)
    if category == "gc":
        return Phase.GARBAGE_COLLECTION
    if category == "checkpoint":
        return Phase.CHECKPOINT
    if category == "forced write":
        return Phase.FORCED_WRITE
    if name.startswith(_COLLECTIVES):
        return Phase.COMMUNICATION
    if name.startswith("enumerate(DataLoader)") or category == "data":
        return Phase.DATA
    if name.startswith("Optimizer."):
        return Phase.OPTIMIZER
    if name.startswith("autograd::engine::"):
        return Phase.BACKWARD
    if category in {"cuda_runtime", "cuda_driver", "runtime"}:
        return Phase.COPY if "memcpy" in name.lower() or "memset" in name.lower() else Phase.FORWARD
    if category in {"cpu_op", "operator"}:
        return Phase.FORWARD
    if category == "task":
        return Phase.SUSPENDED
    if category in {"python_function", "step", "Trace", "stepscope"} or name.startswith("ProfilerStep"):
        return _IGNORED
    return Phase.SPAN


def union(begin: Times, end: Times) -> tuple[Times, Times]:
    """Intervals in order, those that touch or overlap made one."""
    if not len(begin):
        return begin, end
    if (begin[1:] < begin[:-1]).any():
        order = np.argsort(begin, kind="stable")
        begin, end = begin[order], end[order]
    if (begin[1:] > end[:-1]).all():
        return begin, end
    end = np.maximum.accumulate(end)
    first = np.concatenate(([True], begin[1:] > end[:-1]))
    last = np.concatenate((first[1:], [True]))
    return begin[first], end[last]


def covered(begin: Times, end: Times, at: Times) -> Times:
    """How much of the time before each of `at` lies in intervals that are in order and apart, in ns."""
    if not len(begin):
        return np.zeros(len(at), np.int64)
    total = np.concatenate((np.zeros(1, np.int64), np.cumsum(end - begin)))
    index = np.searchsorted(begin, at, side="right")
    inside = np.where(index > 0, np.maximum(end[index - 1] - at, 0), 0)
    return total[index] - inside


class _Classes:
    """Classes of spans by their names' ids, as arrays that `_core.covers` reads. Nearly all names have one category; spans of
    the same name with another one are looked up one by one."""

    def __init__(self) -> None:
        self.tables = np.full(0, 0, np.uint8), np.full(0, _NO_CATEGORY, np.uint16)
        self._known: dict[tuple[int, int], int] = {}

    def of(self, names: NDArray[np.uint32], categories: NDArray[np.uint16]) -> NDArray[np.int64]:
        """The class of each span, which is known afterwards."""
        keys = names.astype(np.int64) << 16 | categories
        unique, inverse = np.unique(keys, return_inverse=True)
        found = np.fromiter((self._class(int(key) >> 16, int(key) & 0xFFFF) for key in unique), np.int64, len(unique))
        return found[inverse]

    def _class(self, name: int, category: int) -> int:
        found = self._known.get((name, category))
        if found is None:
            found = self._known[name, category] = class_of(strings.text(name), strings.text(category))
            classes, categories = self.tables
            if name >= len(classes):
                more = max(2 * len(classes), name + 1) - len(classes)
                classes = np.concatenate((classes, np.zeros(more, np.uint8)))
                categories = np.concatenate((categories, np.full(more, _NO_CATEGORY, np.uint16)))
            if categories[name] == _NO_CATEGORY:
                classes[name], categories[name] = found, category
            self.tables = classes, categories
        return found


_NO_CATEGORY = 0xFFFF
_CLASSES = _Classes()


class StepFactsBuilder:
    """Makes facts of steps of events, in whatever blocks they come.

    Memory does not grow with the number of steps but for the facts, nor with the length of one: what is recorded of steps that
    lie far behind is settled, and so is the older half of a step of very many spans.

    Args:
        late: events may come long after their step has ended, as a backend delivers them that records a window as a whole.
            What is settled before `finish` is only what `settle` says.
    """

    def __init__(self, *, late: bool = False) -> None:
        self._late = late
        self._steps: Times = np.zeros((0, 3), np.int64)
        """Marks of the steps that are open, in order."""
        self._covers: list[Times] = []
        """Intervals that spans cover, by class and track."""
        self._held = 0
        self._signals: dict[str, list[tuple[Times, NDArray[np.float64]]]] = {name: [] for name in SIGNALS}
        self._signal_ids: dict[int, str] = {}
        self._done: list[Facts] = []
        self._before: Times = np.zeros(0, np.int64)
        """The mark before the oldest of an open step."""
        self.begun: int | None = None
        """When the first step began, in ns, as far as is known."""
        self._part: Facts | None = None
        """Of the oldest step that is open, if a part of it is settled. Its mark is where the rest begins."""

    def update(self, events: Block) -> None:
        """Takes events: steps, spans and signals; others are passed over."""
        events = np.ascontiguousarray(events)
        classes, categories = _CLASSES.tables
        found, rare = _core.covers(events, classes, categories, _SIGNAL, _IGNORED, int(Phase.SPAN), _INNER)
        if found:
            self._hold(np.frombuffer(found, np.int64).reshape(-1, 4))
        if rare:
            self._take_rare(events[np.frombuffer(rare, np.int64)])
        if not self._late:
            self.settle(_FOREVER)

    def settle(self, until: int) -> None:
        """Makes the facts of steps that ended before a time by which everything was given, in ns; not of the newest, in which
        spans may have begun that have not ended."""
        ready = int(np.searchsorted(self._steps[:, _TS], until, side="left"))
        if len(self._steps) > MOST_OPEN:
            ready = len(self._steps)
        ready = min(ready, len(self._steps) - SETTLED)
        if ready > MANY - SETTLED or (ready > SETTLED and self._held > MUCH):
            self._settle(ready)
        elif self._held > MANY_INTERVALS and (until < _FOREVER or not self._late):
            self._settle_half()

    def take(self) -> Facts:
        """The facts that were settled since the last call."""
        facts: Any = np.concatenate(self._done) if self._done else np.zeros(0, FACTS_DTYPE)
        self._done.clear()
        return facts  # type: ignore[no-any-return]

    def finish(self, end: int | None = None, window: int = 0) -> Facts:
        """The facts of all steps that have ended, but for those that were taken.

        Args:
            end: when the last step ended, if that was not the beginning of another.
            window: its number.
        """
        if end is not None and len(self._steps) and end > int(self._steps[-1, _TS]):
            last = np.array([(end, -1, self._steps[-1, _ON])], np.int64)
            self._steps = np.concatenate((self._steps, last))
        self._settle(len(self._steps))
        facts = self.take()
        facts["window"] = window
        return facts

    def _hold(self, covers: Any) -> None:
        self._covers.append(covers)
        self._held += len(covers)

    def _take_rare(self, events: Block) -> None:
        kinds = events["kind"]
        steps = events[kinds == Kind.STEP]
        if len(steps):
            self._take_marks(steps)
        counters = events[kinds == Kind.COUNTER]
        if len(counters):
            self._take_signals(counters)
        spans = events[kinds == Kind.SPAN]
        if len(spans):
            classes = _CLASSES.of(spans["name"], spans["category"])
            covers = np.stack((classes, spans["track"], spans["ts"], spans["ts"] + spans["dur"]), axis=1).astype(
                np.int64
            )
            self._hold(covers[classes != _IGNORED])

    def _take_marks(self, steps: Block) -> None:
        new = np.stack((steps["ts"], steps["step"], steps["track"]), axis=1).astype(np.int64)
        last = self._steps[-1, _TS] if len(self._steps) else np.iinfo(np.int64).min
        self._steps = np.concatenate((self._steps, new))
        if new[0, _TS] <= last or (new[1:, _TS] <= new[:-1, _TS]).any():
            self._steps = self._steps[np.unique(self._steps[:, _TS], return_index=True)[1]]
        first = int(self._steps[0, _TS])
        self.begun = first if self.begun is None else min(self.begun, first)

    def _take_signals(self, counters: Block) -> None:
        for name in np.unique(counters["name"]).tolist():
            known = self._signal_ids.get(name)
            if known is None:
                known = self._signal_ids[name] = strings.text(name)
            if known in self._signals:
                these = counters[counters["name"] == name]
                self._signals[known].append((these["ts"].astype(np.int64), these["value"].astype(np.float64)))

    def _settle(self, count: int) -> None:
        """Makes the facts of the oldest steps: of all but the last of `count` marks."""
        if count < 2:
            return
        marks = self._steps[:count]
        facts = self._facts(marks)
        begins: Times = marks[:, _TS].copy()
        if self._part is not None:
            begins[0] = facts["begin"][0] = self._part["begin"][0]
            for name in _SUMS:
                facts[name][0] += self._part[name][0]
            self._part = None
        self._fill_signals(facts, begins)
        self._done.append(facts)
        self._before = begins[-2:-1]
        self._steps = self._steps[count - 1 :]
        self._forget(int(begins[-1]))

    def _settle_half(self) -> None:
        """Makes facts of the older half of what is held: within a step, if need be. A span that goes on there and began before
        counts from there on."""
        covers = self._gathered()
        until = int(np.median(covers[:, _END]))
        self._settle(int(np.searchsorted(self._steps[:, _TS], until, side="right")))
        if len(self._steps) and until > int(self._steps[0, _TS]):
            marks = np.repeat(self._steps[:1], 2, axis=0)
            marks[1, _TS] = until
            part = self._facts(marks)
            if self._part is not None:
                part["begin"] = self._part["begin"]
                for name in _SUMS:
                    part[name] += self._part[name]
            self._part = part
            self._steps = self._steps.copy()
            self._steps[0, _TS] = until
        self._forget(until, signals=False)

    def _facts(self, marks: Times) -> Any:
        """Of the time between marks that follow one another, but for signals."""
        facts: Any = np.zeros(len(marks) - 1, FACTS_DTYPE)
        facts["step"], facts["begin"], facts["end"] = marks[:-1, _STEP], marks[:-1, _TS], marks[1:, _TS]
        covers = self._gathered()
        order = np.argsort(covers[:, _CLASS].astype(np.uint8), kind="stable")
        classes, on, begin, end = np.ascontiguousarray(covers[order].T)
        borders = np.flatnonzero(np.diff(classes, prepend=-1, append=256)).tolist()
        by_class = {
            int(classes[first]): (on[first:last], begin[first:last], end[first:last])
            for first, last in itertools.pairwise(borders)
        }
        devices = [(by_class.get(DEVICE_CLASS + each, _NOTHING)[1:], each) for each in Device]
        _fill(facts, facts["device"], devices)
        # The first mark of a run may be of another thread, or of none of the tasks that step.
        tracks = np.stack((marks[:-1, _ON], marks[1:, _ON]))
        if (marks[:, _ON] == marks[0, _ON]).all():
            self._fill_phases(facts, slice(None), by_class, tracks[:, 0])
            return facts
        tracks.sort(axis=0)
        for own in np.unique(tracks, axis=1).T:
            self._fill_phases(facts, (tracks.T == own).all(axis=1), by_class, own)
        return facts

    def _fill_phases(
        self, facts: Any, chosen: Any, by_class: dict[int, tuple[Times, Times, Times]], own: Times
    ) -> None:
        """Of the steps of one thread, or between two."""
        steps = facts[chosen]
        found: dict[int, tuple[Times, Times]] = {}
        for number, (on, begin, end) in by_class.items():
            if number >= DEVICE_CLASS:
                continue
            inside = (on == own[0]) | (on == own[1])
            if inside.all():
                found[number] = begin, end
                continue
            found[number] = begin[inside], end[inside]
            if number in _ELSEWHERE:
                found[_ELSEWHERE[Phase(number)]] = begin[~inside], end[~inside]
        if Phase.SPAN in found:
            found[Phase.SPAN] = _within_steps(found[Phase.SPAN], found.get(_INNER), self._marks())
        phases = steps["phases"]
        _fill(steps, phases, [(found.get(each, _NOTHING[1:]), each) for each in Phase])
        facts["phases"][chosen] = phases
        if Phase.FORWARD in found:
            begin, end = union(*found[Phase.FORWARD])
            facts["operators"][chosen] = _begun(begin, steps)
            facts["operator_ns"][chosen] = covered(begin, end, steps["end"]) - covered(begin, end, steps["begin"])
        if Phase.GARBAGE_COLLECTION in found:
            facts["collections"][chosen] = _begun(union(*found[Phase.GARBAGE_COLLECTION])[0], steps)

    def _fill_signals(self, facts: Any, marks: Times) -> None:
        for name in SIGNALS:
            pieces = self._signals[name]
            facts[name] = np.nan
            if not pieces:
                continue
            ts, values = (np.concatenate(each) for each in zip(*pieces, strict=True))
            order = np.argsort(ts, kind="stable")
            ts, values = ts[order], values[order]
            self._signals[name] = [(ts, values)]
            index = np.searchsorted(ts, marks, side="right") - 1
            # One that belongs to another mark is no reading of this one; that of a window's last mark comes just before it.
            near = (index >= 0) & (marks - ts[np.maximum(index, 0)] <= 1)
            at = np.where(near, values[np.maximum(index, 0)], np.nan)
            facts[name] = at[1:] if name == "resident_bytes" else np.diff(at)

    def _marks(self) -> Times:
        """Begins of steps, from the one before the oldest that is open."""
        marks = self._steps[:, _TS].copy()
        if self._part is not None:
            marks[0] = self._part["begin"][0]
        return np.concatenate((self._before, marks))

    def _gathered(self) -> Times:
        if len(self._covers) != 1:
            self._covers = [np.concatenate(self._covers) if self._covers else np.zeros((0, 4), np.int64)]
        return self._covers[0]

    def _forget(self, until: int, *, signals: bool = True) -> None:
        """Lets go of what ended by a time, in ns. What goes on then stays as it is: that it began is counted once."""
        covers = self._gathered()
        self._covers = [covers[covers[:, _END] > until]]
        self._held = len(self._covers[0])
        for name, readings in self._signals.items() if signals else ():
            if readings:
                ts, values = readings[0]
                first = max(int(np.searchsorted(ts, until, side="right")) - 1, 0)
                self._signals[name] = [(ts[first:], values[first:])]


_NOTHING = (np.zeros(0, np.int64),) * 3


def _fill(steps: Any, into: Any, found: list[tuple[tuple[Times, ...], Any]]) -> None:
    """Each nanosecond once: a class has what its intervals cover and no earlier class does."""
    begin = end = _NOTHING[0]
    before: Times = np.zeros(len(steps), np.int64)
    for (more_begin, more_end), member in found:
        if len(more_begin):
            begin, end = union(np.concatenate((begin, more_begin)), np.concatenate((end, more_end)))
            now = covered(begin, end, steps["end"]) - covered(begin, end, steps["begin"])
            into[:, int(member)] = now - before
            before = now


def _begun(begin: Times, steps: Any) -> Any:
    return np.searchsorted(begin, steps["end"]) - np.searchsorted(begin, steps["begin"])


def _within_steps(outer: tuple[Times, Times], inner: tuple[Times, Times] | None, marks: Times) -> tuple[Times, Times]:
    """Spans that do not hold a whole step: one around the loop is no part of its steps. Those that lie in it are."""

    def holds(spans: tuple[Times, Times]) -> NDArray[np.bool_]:
        return np.searchsorted(marks, spans[1], side="left") - np.searchsorted(marks, spans[0], side="right") >= 2

    whole = holds(outer)
    if not whole.any():
        return outer
    begin, end = outer[0][~whole], outer[1][~whole]
    if inner is None:
        return begin, end
    within = ~holds(inner)
    return np.concatenate((begin, inner[0][within])), np.concatenate((end, inner[1][within]))

"""Facts of a step: where its time went, each nanosecond once, and what the machine said meanwhile.

One record for each step, made of the events of the thread that steps. It is the same whether the events stream by or are read
back from a file: both go through `StepFactsBuilder`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stepscope.runtime import strings
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

SETTLED = 128
"""Steps that are kept open behind the newest: what is recorded of them may still come."""
MANY = 4 * SETTLED
"""Open steps from which on the oldest are settled."""

MOST_READ = 1e18
"""A signal from here on is no reading: so many ns are 31 years."""

MANY_INTERVALS = 1 << 20
"""Intervals from which on those that touch are joined."""

_IGNORED = 255
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
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], np.maximum.accumulate(end[order])
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


class StepFactsBuilder:
    """Makes facts of steps of events, in whatever blocks they come.

    Memory does not grow with the number of steps but for the facts: what is recorded of steps that lie far behind is settled.

    Args:
        late: events may come long after their step has ended, as a backend delivers them that records a window as a whole. Nothing
            is settled before `finish`.
    """

    def __init__(self, *, late: bool = False) -> None:
        self._late = late
        self._known: dict[tuple[int, int], int] = {}
        self._steps: Any = np.zeros(0, [("ts", "<i8"), ("step", "<i8"), ("track", "<i8")])
        self._intervals: dict[int, list[tuple[Times, Times]]] = {}
        self._operators: list[tuple[Times, Times]] = []
        self._signals: dict[str, list[tuple[Times, NDArray[np.float64]]]] = {name: [] for name in SIGNALS}
        self._signal_ids: dict[int, str] = {}
        self._done: list[Facts] = []
        self._loose = 0
        """Intervals that were added since all were joined."""

    def update(self, events: Block) -> None:
        """Takes events: steps, spans and signals; others are passed over."""
        kinds = events["kind"]
        steps = events[kinds == Kind.STEP]
        if len(steps):
            new: Any = np.zeros(len(steps), self._steps.dtype)
            new["ts"], new["step"], new["track"] = steps["ts"], steps["step"], steps["track"]
            self._steps = np.sort(np.concatenate((self._steps, new)), order="ts", kind="stable")
        counters = events[kinds == Kind.COUNTER]
        if len(counters):
            self._take_signals(counters)
        spans = events[(kinds == Kind.SPAN) & (events["dur"] > 0)]
        if len(spans):
            self._take_spans(spans)
        if not self._late and len(self._steps) > MANY:
            self._settle(len(self._steps) - SETTLED)

    def finish(self, end: int | None = None, window: int = 0) -> Facts:
        """The facts of all steps that have ended.

        Args:
            end: when the last step ended, if that was not the beginning of another.
            window: its number.
        """
        if end is not None and len(self._steps) and end > int(self._steps["ts"][-1]):
            last: Any = np.zeros(1, self._steps.dtype)
            last["ts"], last["step"], last["track"] = end, -1, self._steps["track"][-1]
            self._steps = np.concatenate((self._steps, last))
        self._settle(len(self._steps))
        facts: Any = np.concatenate(self._done) if self._done else np.zeros(0, FACTS_DTYPE)
        facts["window"] = window
        return facts  # type: ignore[no-any-return]

    def _take_signals(self, counters: Block) -> None:
        for name in np.unique(counters["name"]).tolist():
            known = self._signal_ids.get(name)
            if known is None:
                known = self._signal_ids[name] = strings.text(name)
            if known in self._signals:
                these = counters[(counters["name"] == name) & (np.abs(counters["value"]) < MOST_READ)]
                if len(these):
                    self._signals[known].append((these["ts"].astype(np.int64), these["value"].astype(np.float64)))

    def _take_spans(self, spans: Block) -> None:
        names, categories = spans["name"].astype(np.int64), spans["category"].astype(np.int64)
        keys = names << 16 | categories
        unique, inverse = np.unique(keys, return_inverse=True)
        table = np.fromiter((self._class(int(key)) for key in unique), np.uint8, len(unique))
        classes = table[inverse]
        stepping = (
            np.isin(spans["track"], np.unique(self._steps["track"])) if len(self._steps) else np.zeros(len(spans), bool)
        )
        begin = spans["ts"].astype(np.int64)
        end = begin + spans["dur"]
        for number in np.unique(classes).tolist():
            if number == _IGNORED:
                continue
            chosen = classes == number
            if number < DEVICE_CLASS:
                if (elsewhere := _ELSEWHERE.get(number)) is not None:
                    self._add(elsewhere, begin[chosen & ~stepping], end[chosen & ~stepping])
                chosen &= stepping
            if number == Phase.SPAN:
                chosen &= self._within_a_step(begin, end)
            self._add(number, begin[chosen], end[chosen])
            if number == Phase.FORWARD:
                self._operators.append((begin[chosen], end[chosen]))

    def _within_a_step(self, begin: Times, end: Times) -> NDArray[np.bool_]:
        """Which do not hold a whole step: one around the loop is no part of its steps."""
        marks = self._steps["ts"]
        return np.searchsorted(marks, end, side="left") - np.searchsorted(marks, begin, side="right") < 2

    def _class(self, key: int) -> int:
        name, category = key >> 16, key & 0xFFFF
        found = self._known.get((name, category))
        if found is None:
            found = self._known[name, category] = class_of(strings.text(name), strings.text(category))
        return found

    def _add(self, number: int, begin: Times, end: Times) -> None:
        if len(begin):
            self._intervals.setdefault(number, []).append((begin, end))
            self._loose += len(begin)
        if self._loose > MANY_INTERVALS:
            for each in list(self._intervals):
                self._taken(each)
            self._operators = [_joined(self._operators)] if self._operators else []
            self._loose = 0

    def _taken(self, number: int) -> tuple[Times, Times]:
        pieces = self._intervals.get(number, [])
        if not pieces:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        merged = _joined(pieces)
        self._intervals[number] = [merged]
        return merged

    def _settle(self, count: int) -> None:
        """Makes the facts of the oldest steps: of all but the last of `count` marks."""
        if count < 2:
            return
        marks: Times = self._steps["ts"][:count].astype(np.int64)
        facts: Any = np.zeros(count - 1, FACTS_DTYPE)
        facts["step"], facts["begin"], facts["end"] = self._steps["step"][: count - 1], marks[:-1], marks[1:]
        self._fill(facts["phases"], marks, list(Phase), 0)
        self._fill(facts["device"], marks, list(Device), DEVICE_CLASS)
        self._count_operators(facts, marks)
        begin, _ = self._taken(Phase.GARBAGE_COLLECTION)
        if len(begin):
            facts["collections"] = np.diff(np.searchsorted(begin, marks))
        self._fill_signals(facts, marks)
        self._done.append(facts)
        self._forget(int(marks[-1]), count)

    def _fill(self, into: Any, marks: Times, members: list[Any], offset: int) -> None:
        """Each nanosecond once: a class has what its intervals cover and no earlier class does."""
        begin = end = np.zeros(0, np.int64)
        before = np.zeros(len(marks), np.int64)
        for member in members:
            more_begin, more_end = self._taken(offset + member)
            if not len(more_begin):
                continue
            begin, end = union(np.concatenate((begin, more_begin)), np.concatenate((end, more_end)))
            now = covered(begin, end, marks)
            into[:, int(member)] = np.diff(now - before)
            before = now

    def _count_operators(self, facts: Any, marks: Times) -> None:
        if not self._operators:
            return
        begin, end = _joined(self._operators)
        self._operators = [(begin, end)]
        facts["operators"] = np.diff(np.searchsorted(begin, marks))
        facts["operator_ns"] = np.diff(covered(begin, end, marks))

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

    def _forget(self, until: int, count: int) -> None:
        self._steps = self._steps[count - 1 :]
        for number, pieces in self._intervals.items():
            self._intervals[number] = [_after(*each, until) for each in pieces]
        self._operators = [_after(*each, until) for each in self._operators]
        for name, readings in self._signals.items():
            if readings:
                ts, values = readings[0]
                first = max(int(np.searchsorted(ts, until, side="right")) - 1, 0)
                self._signals[name] = [(ts[first:], values[first:])]


def _joined(pieces: list[tuple[Times, Times]]) -> tuple[Times, Times]:
    return union(np.concatenate([begin for begin, _ in pieces]), np.concatenate([end for _, end in pieces]))


def _after(begin: Times, end: Times, until: int) -> tuple[Times, Times]:
    kept = end > until
    return np.maximum(begin[kept], until), end[kept]

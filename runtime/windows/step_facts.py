"""Facts of a step: its time by phase and on devices, each nanosecond once, and the readings of signals.

`StepFactsBuilder` makes one record for each step from the events of the thread that steps, both for live events and for those
of a file.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stepscope.runtime import _core
from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.record import NO_STEP, Block, distinct, find_at_once
from stepscope.runtime.events.tracks import TrackKind

Facts: TypeAlias = NDArray[np.void]
"""One-dimensional array of `FACTS_DTYPE`."""
Times: TypeAlias = NDArray[np.int64]


class Phase(IntEnum):
    """Kinds of time on the thread that steps. If several are open at once, the first of them gets the time."""

    GARBAGE_COLLECTION = 0
    COMMUNICATION = 1
    CHECKPOINT = 2
    LOGGING = 3
    FORCED_WRITE = 4
    DATA = 5
    OPTIMIZER = 6
    BACKWARD = 7
    COPY = 8
    FORWARD = 9
    SUSPENDED = 10
    """A task of asyncio waits."""
    BACKWARD_ELSEWHERE = 11
    """autograd works on its own thread, and nothing else is open here."""
    COMMUNICATION_ELSEWHERE = 12
    """A collective runs on another thread, as those of gloo do, and nothing else is open here."""
    SPAN = 13
    """Spans of the program, without the phases above that are nested in them."""


class Device(IntEnum):
    """Kinds of time on devices. If several run at once, on any streams, the first of them gets the time."""

    COMPUTE = 0
    """Kernels, and memsets, which move nothing between host and device."""
    COMMUNICATION = 1
    """Kernels of collectives."""
    COPY = 2


find_at_once(Phase)
find_at_once(Device)

SIGNALS = ("cpu_ns", "run_queue_ns", "resident_bytes", "page_faults", "preemptions", "written_bytes")
"""Signals of the thread that steps (for memory, of its process), which are read when a step begins."""
SIGNAL = "step signal"
"""Category of their counters."""
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
"""Times in ns. `operators` and `operator_ns` count the outermost operators on the thread that steps. Signals are differences over
the step, but for `resident_bytes`, which is the value at its end. NaN means no reading."""
_RAW_FACTS = np.dtype((np.void, FACTS_DTYPE.itemsize))

MIN_OPEN = 8
"""Newest steps that stay open, as further events of them may come."""
MANY_OPEN = 64 * MIN_OPEN
"""With more open steps than this, the oldest are finished."""
LEARNED_SPANS = 256
"""Of so many spans the classes are learned first, where there are more with names that are new: most names are among them."""

MOST_READ = 1e18
"""Larger values of signals are not believed: so many ns are 31 years."""
MANY_INTERVALS = 1 << 15
"""With more intervals than this, fewer steps are finished at once: data that fits a processor's cache is faster."""
MOST_OPEN = 1 << 16
"""With more open steps than this, the oldest are finished even if events of them may come."""
MOST_INTERVALS = 1 << 16
"""With more intervals than this (2 MB), the older half is finished, even within a step."""
FACTS_TOGETHER = 64
"""Number of finished steps that are worth a call of `pop_facts`: whatever adds them up takes as long for one."""
MEDIAN_OF = 1 << 10
"""Number of intervals whose median divides the older half from the newer one."""

_IGNORED = 255
_INNER = 100
"""Class of the program's spans that are nested in its other spans. They count only if the outer one does not."""
_FOREVER = np.iinfo(np.int64).max
_TS, _STEP, _ON = range(3)
"""Columns of step marks: time, step, track."""
_CLASS, _TRACK, _BEGIN, _END = range(4)
"""Columns of the intervals that spans cover. Arrays without named fields are faster to join."""
_SUMS = ("phases", "device", "operators", "operator_ns", "collections")
DEVICE_CLASS = 200
"""`class_of` adds this to a `Device`."""
_ELSEWHERE = {Phase.BACKWARD: Phase.BACKWARD_ELSEWHERE, Phase.COMMUNICATION: Phase.COMMUNICATION_ELSEWHERE}
"""Phases of spans on other threads. Spans of other phases do not count there."""
_DEVICES = tuple(DEVICE_CLASS + each for each in Device)
_STEPPING_SLOTS = bytes(each if each in {*Phase, _INNER, *_DEVICES} else _IGNORED for each in range(256))
"""The slot of each class of spans on the tracks that step: its own class, if it counts."""
_OTHER_SLOTS = bytes(
    each if each in _DEVICES else int(_ELSEWHERE[Phase(each)]) if each in _ELSEWHERE else _IGNORED
    for each in range(256)
)
"""The same on all other tracks, where only devices, backward and collectives count."""
_SIGNAL_IDS = {name: strings.intern(name) for name in SIGNALS}
_SIGNAL_ROWS = np.array([_SIGNAL_IDS[name] for name in SIGNALS], np.int64)
COLLECTIVE_PREFIX = r"(?:nccl|gloo|mpi|ucc|hccl|xccl):"
"""How names of torch's collectives begin: with the library of the process group."""
_COLLECTIVE = re.compile(
    COLLECTIVE_PREFIX + r"|_?c10d(_functional)?::|record_param_comms"
    r"|(all_?reduce|all_?gather|reduce_scatter|all_to_all|broadcast|barrier)(?![a-z0-9_])"
    r"|(?:.*/)?(?:AllReduce|AllGather|Reduce|ReduceScatter|Broadcast|AlltoAll|NeighborExchange|CollectiveScatter|CollectiveGather|Barrier"
    r"|Send|Receive|BatchISendIRecv)(?:V|VC|V2)?-op\d",
    re.IGNORECASE,
)
"""How the names of spans begin in which a rank waits for others: as torch names them, as people do, and as MindSpore does, between a scope
and a number: `Default/AllReduce-op4` (mindspore/ops/operations/comm_ops.py)."""
_KERNELS = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "concurrent_kernel"})
_WAITS = frozenset({"data", "dataloader"})
"""Categories of spans in which the program waits for a batch."""
_OPTIMIZER = re.compile(r"Optimizer\.|Default/(?:.*/)?(?:optimizer-|Apply)")
"""How names of an optimizer's work begin: torch's `Optimizer.step#SGD.step`, MindSpore's `Default/optimizer-Momentum/...` and
`Default/ApplyMomentum-op3`."""
_BACKWARD = ("autograd::engine::", "Gradients/")
"""The same for backward: of torch's engine, and the scope of MindSpore's operators of gradients."""
_COMPILED = "Torch-Compiled Region"
"""The same for code that torch.compile has compiled."""


_BY_CATEGORY = {
    "communication": Phase.COMMUNICATION,
    "gc": Phase.GARBAGE_COLLECTION,
    "checkpoint": Phase.CHECKPOINT,
    "logging": Phase.LOGGING,
    "forced write": Phase.FORCED_WRITE,
}


def class_of(name: str, category: str) -> int:
    """The `Phase` of a span by its name and category, or `DEVICE_CLASS` plus a `Device`; 255 = none."""
    if category in _KERNELS:
        if category == "gpu_memcpy":
            return DEVICE_CLASS + Device.COPY
        return DEVICE_CLASS + (Device.COMMUNICATION if "nccl" in name.lower() else Device.COMPUTE)
    if category in _BY_CATEGORY:
        return _BY_CATEGORY[category]
    if _COLLECTIVE.match(name):
        return Phase.COMMUNICATION
    if name.startswith("enumerate(DataLoader)") or category in _WAITS:
        return Phase.DATA
    if _OPTIMIZER.match(name):
        return Phase.OPTIMIZER
    if name.startswith(_BACKWARD):
        return Phase.BACKWARD
    if category in {"cuda_runtime", "cuda_driver", "runtime"}:
        return Phase.COPY if "memcpy" in name.lower() or "memset" in name.lower() else Phase.FORWARD
    if category in {"cpu_op", "operator"} or name.startswith(_COMPILED):
        return Phase.FORWARD
    if category == "task":
        return Phase.SUSPENDED
    if category in {"python_function", "step", "Trace", "stepscope"} or name.startswith("ProfilerStep"):
        return _IGNORED
    return Phase.SPAN


def union(begin: Times, end: Times) -> tuple[Times, Times]:
    """Sorts intervals, and merges those that touch or overlap."""
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


def covered_before(begin: Times, end: Times, at: Times) -> Times:
    """For each of `at`, how much time before it sorted, disjoint intervals cover, in ns."""
    if not len(begin):
        return np.zeros(len(at), np.int64)
    total = np.concatenate((np.zeros(1, np.int64), np.cumsum(end - begin)))
    index = np.searchsorted(begin, at, side="right")
    inside = np.where(index > 0, np.maximum(end[index - 1] - at, 0), 0)
    return total[index] - inside


def running(spans: Times, waits: Times) -> tuple[Times, Times]:
    """When spans are open and no wait on their own track is; sorted and disjoint. Both are intervals, and may overlap."""
    both = np.concatenate((spans, spans, waits, waits))
    opened = np.repeat((1, -1, 0, 0), (len(spans), len(spans), len(waits), len(waits)))
    waited = np.repeat((0, 0, 1, -1), (len(spans), len(spans), len(waits), len(waits)))
    times = np.concatenate((spans[:, _BEGIN], spans[:, _END], waits[:, _BEGIN], waits[:, _END]))
    order = np.lexsort((times, both[:, _TRACK]))
    times = times[order]
    open_at = np.flatnonzero((np.cumsum(opened[order]) > 0) & (np.cumsum(waited[order]) == 0))
    open_at = open_at[times[open_at] < times[open_at + 1]]
    return union(times[open_at], times[open_at + 1])


def thread_of(track: int) -> int:
    """The track of the thread that a track's task runs on; the track itself, if it is of no task."""
    row = tracks.get(track)
    return track if row is None or row.kind != TrackKind.TASK else row.parent


def _with_other_tasks(intervals: Times, stepping: tuple[int, int]) -> Times:
    """Adds to the first track that steps what spans of other tasks cover of its thread: a task of asyncio that does not wait runs.
    Meanwhile the one that steps waits for its turn, and its waiting is shorter by that."""
    on, classes = intervals[:, _TRACK], intervals[:, _CLASS]
    mine = np.isin(on, stepping)
    spans = ~mine & ((classes == Phase.SPAN) | (classes == _INNER))
    threads = {thread_of(track) for track in stepping}
    others = [track for track in distinct(on[spans]) if track not in threads and thread_of(track) in threads]
    if not others:
        return intervals
    theirs, waits = np.isin(on, others), classes == Phase.SUSPENDED
    begin, end = running(intervals[theirs & spans], intervals[theirs & waits])
    run = _intervals(Phase.SPAN, stepping[0], begin, end)
    waiting = intervals[mine & waits]
    waiting[:, _TRACK] = stepping[0]
    left = _intervals(Phase.SUSPENDED, stepping[0], *running(waiting, run))
    return np.concatenate((intervals[~(mine & waits)], run, left))


def _without_closures(intervals: Times) -> Times:
    """Lets an optimizer begin when the last backward in it has ended, on any thread: until then it ran a closure, which computes the loss.

    So do Lightning, for each step, and optimizers such as LBFGS.
    """
    classes = intervals[:, _CLASS]
    backward, is_optimizer = intervals[classes == Phase.BACKWARD], classes == Phase.OPTIMIZER
    if not len(backward) or not is_optimizer.any():
        return intervals
    # Whether intervals that overlap are joined already depends on when their events came.
    optimizers = _joined(intervals[is_optimizer])
    begins, ends = np.sort(backward[:, _BEGIN]), np.sort(backward[:, _END])
    ended = np.searchsorted(ends, optimizers[:, _END])
    goes_on = np.searchsorted(begins, optimizers[:, _END]) > ended
    last = ends[ended - 1]
    inside = (ended > 0) & (last > optimizers[:, _BEGIN]) & ~goes_on
    if not inside.any():
        return intervals
    optimizers[inside, _BEGIN] = last[inside]
    return np.concatenate((intervals[~is_optimizer], optimizers))


def _joined(intervals: Times) -> Times:
    """Intervals of one class, with those of a track that overlap or touch joined."""
    joined: list[Times] = []
    for track in distinct(intervals[:, _TRACK]):
        own = intervals[intervals[:, _TRACK] == track]
        own = own[np.argsort(own[:, _BEGIN], kind="stable")]
        ends = np.maximum.accumulate(own[:, _END])
        (first,) = np.nonzero(np.concatenate(([True], own[1:, _BEGIN] > ends[:-1])))
        own[first, _END] = ends[np.append(first[1:], len(own)) - 1]
        joined.append(own[first])
    return np.concatenate(joined)


def _new_intervals(memory: Any = b"") -> _core.SpanIntervals:
    intervals = _core.SpanIntervals(_IGNORED, int(Phase.SPAN), _INNER)
    intervals.extend(memory)
    return intervals


def _as_intervals(memory: bytes) -> Times:
    return np.frombuffer(memory, np.int64).reshape(-1, 4)


def _intervals(number: int, track: int, begin: Times, end: Times) -> Times:
    """Intervals of one class and track."""
    return np.stack((np.full(len(begin), number), np.full(len(begin), track), begin, end), axis=1)


class _Classes:
    """Classes of spans by the ids of their names, as arrays for `_core.SpanIntervals`. Nearly all names have one category. Spans
    of the same name with another category are looked up separately."""

    def __init__(self) -> None:
        self.tables = np.full(0, 0, np.uint8), np.full(0, _NO_CATEGORY, np.uint16)
        self._known: dict[tuple[int, int], int] = {}
        self.devices = self.optimizers = False
        """Whether any class of a device, or of an optimizer, was found."""

    def of(self, names: NDArray[np.uint32], categories: NDArray[np.uint16]) -> NDArray[np.int64]:
        """The class of each span. Adds it to `tables`."""
        keys = names.astype(np.int64) << 16 | categories
        unique, inverse = np.unique(keys, return_inverse=True)
        found = np.fromiter((self._class(int(key) >> 16, int(key) & 0xFFFF) for key in unique), np.int64, len(unique))
        return found[inverse]

    def learn(self, spans: Block) -> None:
        """Adds the classes of spans to `tables`. It is for some spans of many: unlike `of` it never releases the interpreter's lock, which
        the program may keep for milliseconds each time."""
        for name, category in {*zip(spans["name"].tolist(), spans["category"].tolist(), strict=True)}:
            self._class(name, category)

    def _class(self, name: int, category: int) -> int:
        found = self._known.get((name, category))
        if found is None:
            found = self._known[name, category] = class_of(strings.text(name), strings.text(category))
            self.devices = self.devices or found in _DEVICES
            self.optimizers = self.optimizers or found == Phase.OPTIMIZER
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


def _with_ends(marks: Times, ends: Times) -> Times:
    """Adds marks of no step to step marks, at the ends of steps that no other step follows."""
    before = np.searchsorted(marks[:, _TS], ends, side="right") - 1
    new = (before >= 0) & (marks[before, _TS] < ends)
    ends, before = ends[new], before[new]
    added = np.stack((ends, np.full(len(ends), NO_STEP), marks[before, _ON]), axis=1)
    return np.insert(marks, before + 1, added, axis=0)


def join_facts(pieces: Sequence[Facts]) -> Facts:
    """Joins arrays. `np.concatenate` alone would compute the record type each time."""
    if len(pieces) == 1:
        return pieces[0]
    raw = [piece.view(_RAW_FACTS) for piece in pieces]
    joined: Facts = np.concatenate(raw).view(FACTS_DTYPE) if raw else np.zeros(0, FACTS_DTYPE)
    return joined


class StepFactsBuilder:
    """Computes the facts of steps from blocks of events, in any order.

    Memory is bounded, but for the facts: old steps are finished, that is, their facts are computed and their intervals dropped.
    So is the older half of a step with very many spans.

    Args:
        late: events may come long after the end of their step, as from a backend that delivers a window as a whole. Then only
            `finish_until` and `finish` finish steps.
    """

    def __init__(self, *, late: bool = False) -> None:
        self._late = late
        self._steps: Times = np.zeros((0, 3), np.int64)
        self._new_marks: list[Times] = []
        """Marks that are not in `_steps` yet."""
        self._open = 0
        """Number of marks in both."""
        self._intervals = _new_intervals()
        self._readings: list[Times] = []
        """Of signals: time, name, bits of the value."""
        self._done: list[Facts] = []
        self._before: Times = np.zeros(0, np.int64)
        """The step mark before the oldest open one."""
        self._first: int | None = None
        self._part: Facts | None = None
        """The facts of the finished part of the oldest open step. Its mark is moved to the begin of the rest."""

    def update(self, events: Block) -> None:
        """Adds steps, spans and signals; ignores other events."""
        events = np.ascontiguousarray(events)
        classes, categories = _CLASSES.tables
        marks, readings, rare = self._intervals.add(events, classes, categories, _SIGNAL)
        if marks:
            self._new_marks.append(np.frombuffer(marks, np.int64).reshape(-1, 3))
            self._open += len(self._new_marks[-1])
        if readings:
            self._readings.append(np.frombuffer(readings, np.int64).reshape(-1, 3))
        if rare:
            spans = events[np.frombuffer(rare, np.int64)]
            if len(spans) > LEARNED_SPANS:
                _CLASSES.learn(spans[:LEARNED_SPANS])
                _, _, rare = self._intervals.add(spans, *_CLASSES.tables, _SIGNAL)
                spans = spans[np.frombuffer(rare, np.int64)]
            numbers = _CLASSES.of(spans["name"], spans["category"])
            begin = spans["ts"].astype(np.int64)
            intervals = np.stack((numbers, spans["track"], begin, begin + spans["dur"]), axis=1)
            self._intervals.extend(intervals[numbers != _IGNORED])
        if not self._late:
            self.finish_until(_FOREVER)

    def finish_until(self, until: int, *, divide: bool = True) -> bool:
        """Finishes old steps, if there are many; all events before this time were added, in ns. The newest stay open: they may
        have open spans. Without `divide`, memory is not bounded while events of old steps may come. Returns whether it is time for
        `pop_facts`."""
        if self._open <= MANY_OPEN and len(self._intervals) <= MANY_INTERVALS:
            return False
        times = self._marks()[:, _TS]
        ready = len(times) if len(times) > MOST_OPEN else int(np.searchsorted(times, until, side="left"))
        ready = min(ready, len(times) - MIN_OPEN)
        if ready > MANY_OPEN - MIN_OPEN or (ready > MIN_OPEN and len(self._intervals) > MANY_INTERVALS):
            self._finish_steps(ready)
        elif divide and len(self._intervals) > MOST_INTERVALS:
            self._finish_half()
        return sum(map(len, self._done)) >= FACTS_TOGETHER

    def pop_facts(self) -> Facts:
        """The facts of the steps that were finished since the last call."""
        facts = join_facts(self._done)
        self._done.clear()
        return facts

    def finish(self, *ends: int, window: int = 0) -> Facts:
        """The facts of all steps that have ended in a window, without those that `pop_facts` has returned. `ends` are ends of
        steps that no other step follows at once, in order: of the last step of each window."""
        marks = self._marks()
        if len(marks):
            self._steps = _with_ends(marks, np.array(ends, np.int64))
        self._finish_steps(len(self._steps))
        facts = self.pop_facts()
        if len(ends) > 1:
            facts = facts[facts["step"] != NO_STEP]  # the time between two windows
        facts["window"] = window
        return facts

    def preview(self, *ends: int) -> Facts:
        """The facts of steps that have ended, as far as their events were added, for live views. Changes nothing. `ends` as for
        `finish`."""
        self._marks()
        copied = copy.copy(self)
        # Arrays are replaced, but for the part of a step, and lists are changed.
        copied._intervals = _new_intervals(self._intervals.to_bytes())
        copied._readings, copied._done = [*self._readings], [*self._done]
        copied._part = None if self._part is None else self._part.copy()
        return copied.finish(*ends)

    @property
    def first_begin(self) -> int | None:
        """When the first known step began, in ns."""
        self._marks()
        return self._first

    def _marks(self) -> Times:
        """The marks of open steps, in order, without duplicates."""
        if self._new_marks:
            marks = np.concatenate((self._steps, *self._new_marks))
            if (marks[1:, _TS] <= marks[:-1, _TS]).any():
                marks = marks[np.unique(marks[:, _TS], return_index=True)[1]]
            self._steps, self._open = marks, len(marks)
            self._new_marks.clear()
            first = int(marks[0, _TS])
            self._first = first if self._first is None else min(self._first, first)
        return self._steps

    def _finish_steps(self, count: int) -> None:
        """Finishes the oldest steps: all but the last of `count` marks. Drops the intervals in them."""
        if count > 1:
            facts = self._with_part(self._facts(self._steps[:count]))
            self._part = None
            self._add_done(facts, int(self._steps[count - 1, _TS]))
            self._steps = self._steps[count - 1 :]
            self._open = len(self._steps)

    def _finish_half(self) -> None:
        """Finishes the older half of the intervals, within a step if necessary. A span that is open there is divided."""
        every = max(len(self._intervals) // MEDIAN_OF, 1)
        ends: list[int] = sorted(np.frombuffer(self._intervals.ends(every), np.int64).tolist())
        until = ends[len(ends) // 2]
        count = int(np.searchsorted(self._steps[:, _TS], until, side="right"))
        if not count:
            self._intervals.drop_until(until)
            return
        marks = self._steps[[*range(count), count - 1]]
        marks[-1, _TS] = until
        facts = self._with_part(self._facts(marks))
        self._part = facts[-1:].copy()
        self._add_done(facts[:-1], until)
        self._steps = self._steps[count - 1 :].copy()
        self._steps[0, _TS] = until
        self._open = len(self._steps)

    def _with_part(self, facts: Any) -> Any:
        """Adds what is finished of the oldest step to its facts."""
        if self._part is not None:
            facts["begin"][0] = self._part["begin"][0]
            for name in _SUMS:
                facts[name][0] += self._part[name][0]
        return facts

    def _add_done(self, facts: Any, until: int) -> None:
        """Adds the facts of finished steps, and drops intervals and signals that ended by then."""
        self._intervals.drop_until(until)
        if not len(facts):
            return
        begins = np.append(facts["begin"], facts["end"][-1:])
        self._fill_signals(facts, begins)
        self._done.append(facts)
        self._before = begins[-2:-1]
        self._readings = [readings[readings[:, 0] >= begins[-1] - 1] for readings in self._readings]

    def _facts(self, marks: Times) -> Any:
        """The facts of the time between consecutive marks, without signals."""
        facts: Any = np.zeros(len(marks) - 1, FACTS_DTYPE)
        facts["step"], facts["begin"], facts["end"] = marks[:-1, _STEP], marks[:-1, _TS], marks[1:, _TS]
        if _CLASSES.devices:
            facts["device"] = self._share_time(self._intervals, marks, (0, 0), _DEVICES[0], _DEVICES[-1])[0].T
        if (marks[:, _ON] == marks[0, _ON]).all():
            track = int(marks[0, _ON])
            self._fill_phases(facts, slice(None), marks, (track, track))
            return facts
        # The first mark of a run may be of another thread, or of a task that does not step.
        tracks = np.sort(np.stack((marks[:-1, _ON], marks[1:, _ON])), axis=0)
        for one, other in np.unique(tracks, axis=1).T.tolist():
            self._fill_phases(facts, (tracks[0] == one) & (tracks[1] == other), marks, (one, other))
        return facts

    def _fill_phases(self, facts: Any, chosen: Any, marks: Times, stepping: tuple[int, int]) -> None:
        """Sets the phases of steps of one thread, or of those that begin on one thread and end on another."""
        intervals = self._intervals
        if intervals.tasks or _CLASSES.optimizers:
            before = changed = _as_intervals(intervals.to_bytes())
            if intervals.tasks:
                changed = _with_other_tasks(changed, stepping)
            if _CLASSES.optimizers:
                changed = _without_closures(changed)
            if changed is not before:
                intervals = _new_intervals(changed)
        ns, begun, covered = self._share_time(intervals, marks, stepping, Phase.GARBAGE_COLLECTION, Phase.SPAN, chosen)
        facts["phases"][chosen] = ns.T
        facts["operators"][chosen], facts["operator_ns"][chosen] = begun[Phase.FORWARD], covered[Phase.FORWARD]
        facts["collections"][chosen] = begun[Phase.GARBAGE_COLLECTION]

    def _share_time(
        self,
        intervals: _core.SpanIntervals,
        marks: Times,
        stepping: tuple[int, int],
        first: int,
        last: int,
        chosen: Any = slice(None),
    ) -> Any:
        """Calls `share_time` for a range of slots. Returns its values by slot and step.

        `stepping` are the tracks that step in this time: one, or the two between which steps change.
        """
        begin, end = np.ascontiguousarray(marks[:-1, _TS][chosen]), np.ascontiguousarray(marks[1:, _TS][chosen])
        known, slots = self._known_begins(), (first, last)
        found = intervals.share_time(begin, end, _STEPPING_SLOTS, _OTHER_SLOTS, known, stepping, slots)
        return np.frombuffer(found, np.int64).reshape(last - first + 1, 3, len(begin)).transpose(1, 0, 2)

    def _fill_signals(self, facts: Any, marks: Times) -> None:
        if not any(map(len, self._readings)):
            for name in SIGNALS:
                facts[name] = np.nan
            return
        if len(self._readings) > 1:
            self._readings = [np.concatenate(self._readings)]
        readings = self._readings[0]
        # The reading of a window's last mark comes just before it.
        found = _core.readings_at(np.ascontiguousarray(readings), _SIGNAL_ROWS, np.ascontiguousarray(marks), MOST_READ)
        values = np.frombuffer(found, np.float64).reshape(len(_SIGNAL_ROWS), len(marks))
        between = values[:, 1:] - values[:, :-1]
        for row, name in enumerate(SIGNALS):
            facts[name] = values[row, 1:] if name == "resident_bytes" else between[row]

    def _known_begins(self) -> Times:
        """Begins of steps, from the one before the oldest open step."""
        begins = self._steps[:, _TS].copy()
        if self._part is not None:
            begins[0] = self._part["begin"][0]
        return np.concatenate((self._before, begins))

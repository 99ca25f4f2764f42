"""Chooses the events that are sent: they wait until their step is complete, then pass a filter and a limit of the rate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from stepscope.exporters.otlp.options import OtlpOptions
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Block, EventBatch, Flag, Kind, empty_block, join_blocks

K = TypeVar("K")
V = TypeVar("V")
Indices: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]

NONE = -1
"""Stands for an index: there is no such event."""
UNKNOWN = -2
"""Stands for a parent's index: the parent is not among these events."""
RUN_TRACE = -1
"""Stands for a step: the trace of the run."""

MAX_DEPTH = 1024
"""Generations that are followed to an ancestor; recorded stacks are less deep."""
MAX_ATTACHED = 128
"""Events of one span, and links: the limit of OpenTelemetry's SDKs, which stores count on."""
MAX_ORPHANS = 4096
"""Spans of the run's trace that wait for a parent which has not ended."""
MAX_STEP_ENDS = 4096
"""Steps of which a window's buffer knows the end."""
MAX_REMEMBERED = 65_536
"""Entries of what is remembered of spans that were sent, for events that belong to them and come later."""

FOREVER = (1 << 63) - 1
POINTS = (Kind.INSTANT, Kind.ASYNC_BEGIN, Kind.ASYNC_END, Kind.METADATA, Kind.GAP)
SAMPLES = (Kind.COUNTER, Kind.MEMORY)
FLOWS = (Kind.FLOW_START, Kind.FLOW_STEP, Kind.FLOW_END)


def is_step(events: Block) -> Mask:
    """Returns which of these spans are steps."""
    numbered: Mask = (events["flags"] & int(Flag.NUMBERED)) != 0
    return numbered


def map_ids(ids: NDArray[np.unsignedinteger], function: Callable[[int], Any], dtype: DTypeLike) -> NDArray[Any]:
    """Returns the value of `function` for each id; it is called once for each distinct one."""
    distinct, places = np.unique(ids, return_inverse=True)
    return np.array([function(number) for number in distinct.tolist()], dtype)[places]


def remember(entries: dict[K, V], key: K, value: V, most: int = MAX_REMEMBERED) -> None:
    """Adds an entry to a mapping, and removes the oldest one of more than `most`."""
    entries[key] = value
    if len(entries) > most:
        del entries[next(iter(entries))]


class EventFilter:
    """Passes events by category, name and duration, as the options say. Steps always pass."""

    def __init__(self, options: OtlpOptions) -> None:
        self._options = options
        self._min_ns = round(options.min_duration * 1e9)
        self._category_passes = cache(self._check_category)
        self._name_passes = cache(self._check_name)

    def mask(self, events: Block) -> Mask:
        """Returns which of these events pass."""
        passing: Mask = map_ids(events["category"], self._category_passes, np.bool_)
        if self._options.names is not None:
            passing &= map_ids(events["name"], self._name_passes, np.bool_)
        spans = events["kind"] == int(Kind.SPAN)
        if self._min_ns:
            passing &= ~spans | (events["dur"] >= self._min_ns)
        passing |= spans & is_step(events)
        return passing

    def _check_category(self, category: int) -> bool:
        text, only = strings.text(category), self._options.categories
        return text in only if only is not None else text not in self._options.leave_out

    def _check_name(self, name: int) -> bool:
        text = strings.text(name)
        return any(fnmatchcase(text, pattern) for pattern in self._options.names or ())


class RateLimit:
    """A token bucket over recorded time.

    The same run gets the same number of tokens whether it is sent at once, after an outage or from a journal. The bucket
    holds the tokens of one second, or of the time that a call covers if that is longer.
    """

    def __init__(self, per_second: float | None) -> None:
        """Args: tokens for each second; `None`: no limit."""
        self._rate = per_second
        self._tokens = 0.0
        self._at: int | None = None

    def reserve(self, wanted: int, start: int, end: int) -> int:
        """Takes tokens for events that happened from `start` to `end`, in ns.

        Returns:
            How many it took, at most `wanted`.
        """
        if self._rate is None:
            return wanted
        capacity = self._rate * max((end - start) / 1e9, 1.0)
        if self._at is None:
            self._tokens, self._at = capacity, end
        else:
            self._tokens = min(self._tokens + self._rate * max((end - self._at) / 1e9, 0.0), capacity)
            self._at = max(self._at, end)
        # A rate below one a second collects parts of a token over several calls.
        count = min(wanted, int(self._tokens))
        self._tokens -= count
        return count


class Rows:
    """Events of several batches in one block, each with its batch's heap of arguments and source."""

    def __init__(self, batches: list[EventBatch]) -> None:
        self.events: Block = join_blocks(batch.events for batch in batches) if batches else empty_block()
        self.heaps = [batch.args for batch in batches]
        self.sources = [batch.source for batch in batches]
        self.batch: Indices = np.repeat(np.arange(len(batches)), [len(batch) for batch in batches])
        """Index of each event's heap and source."""


class WindowBuffer:
    """Buffers the events of one window until their step is complete, so that each of them finds its parent.

    The span of a step is recorded when the step has ended, and what other threads recorded meanwhile follows it. So a step
    counts as complete when the span of a later step arrives. An event that arrives even later goes with the next steps.
    """

    def __init__(self, index: int, options: OtlpOptions) -> None:
        self.index = index
        self._max_events = options.hold_events
        self._max_ns = round(options.hold_seconds * 1e9)
        self._batches: list[EventBatch] = []
        self._orphans: list[EventBatch] = []
        self._count = self._newest = 0
        self._oldest = FOREVER
        self._complete = self._latest = -1
        self._ends: dict[int, int] = {}
        """Ends of steps, in ns."""
        self.sent_steps: dict[int, None] = {}
        """Steps whose own span was sent."""
        self.unsent_steps: dict[int, tuple[int, int]] = {}
        """Begin and end in ns of the spans that were sent of steps whose own span was not."""
        self.marks = 0
        """Step marks so far."""
        self.first, self.last = FOREVER, 0
        """Begin and end of the events, in ns."""

    def add(self, batch: EventBatch) -> Rows | None:
        """Buffers a batch.

        Returns:
            The events of steps that are complete now, or all events if the buffer has reached a limit.
        """
        events = batch.events
        if not len(events):
            return None
        self._batches.append(batch)
        self._count += len(events)
        self._oldest = min(self._oldest, int(events["ts"].min()))
        self._newest = max(self._newest, int(events["ts"].max()))
        self.first, self.last = min(self.first, self._oldest), max(self.last, self._newest)
        steps = events[(events["kind"] == int(Kind.SPAN)) & is_step(events)]
        if len(steps):
            for step, end in zip(steps["step"].tolist(), (steps["ts"] + steps["dur"]).tolist(), strict=True):
                remember(self._ends, step, end, MAX_STEP_ENDS)
            before, self._complete = self._complete, self._latest
            self._latest = max(self._latest, int(steps["step"].max()))
            if self._complete > before:
                return self._drain_steps(self._complete)
        if self._count > self._max_events or self._newest - self._oldest > self._max_ns:
            return self.drain()
        return None

    def drain(self) -> Rows:
        """Removes all events from the buffer and returns them."""
        return self._drain_rows(self._batches, [])

    def put_back(self, rows: Rows, orphans: Mask) -> None:
        """Buffers spans again whose parents have not ended; they are among the next events that are taken."""
        batches: set[int] = set(rows.batch[orphans].tolist())
        for number in sorted(batches):
            part = rows.events[orphans & (rows.batch == number)]
            self._orphans.append(EventBatch(rows.sources[number], self.index, part, rows.heaps[number]))

    def step_sent(self, step: int) -> None:
        """Notes that the span of a step is sent."""
        remember(self.sent_steps, step, None)
        self.unsent_steps.pop(step, None)

    def span_sent(self, step: int, begin: int, end: int) -> None:
        """Notes that a span in the trace of a step is sent, perhaps before the span of the step itself."""
        if step != RUN_TRACE and step not in self.sent_steps:
            first, last = self.unsent_steps.get(step, (begin, end))
            self.unsent_steps[step] = min(first, begin), max(last, end)

    def trace_steps(self, events: Block) -> NDArray[np.int32]:
        """Returns the step in whose trace each event is: `RUN_TRACE` if it is in no step, or a later step ends within it."""
        found: Any = np.maximum(events["step"], RUN_TRACE)
        if self._ends:
            numbers = np.array(sorted(self._ends), np.int64)
            ends = np.array([self._ends[number] for number in numbers.tolist()], np.int64)
            following = np.searchsorted(numbers, events["step"], side="right")
            contains = following < len(numbers)
            contains[contains] = (events["ts"] + np.maximum(events["dur"], 0))[contains] >= ends[following[contains]]
            spans = (events["kind"] == int(Kind.SPAN)) & ~is_step(events)
            found = np.where(contains & spans, RUN_TRACE, found)
        return found  # type: ignore[no-any-return]

    def _drain_steps(self, last: int) -> Rows:
        ended: list[EventBatch] = []
        rest: list[EventBatch] = []
        for batch in self._batches:
            early = batch.events["step"] <= last
            if early.all():
                ended.append(batch)
            elif early.any():
                ended.append(EventBatch(batch.source, batch.window, batch.events[early], batch.args))
                rest.append(EventBatch(batch.source, batch.window, batch.events[~early], batch.args))
            else:
                rest.append(batch)
        return self._drain_rows(ended, rest)

    def _drain_rows(self, batches: list[EventBatch], rest: list[EventBatch]) -> Rows:
        rows = Rows(self._orphans + batches)
        self._orphans, self._batches = [], rest
        self._count = sum(map(len, rest))
        self._oldest = min((int(batch.events["ts"].min()) for batch in rest), default=FOREVER)
        return rows


class Selection:
    """Sorts events into those that are sent and those that are not; each is in one place only.

    A point, such as an instant, becomes an event of the span in which it happened. It becomes a span without duration if
    neither that span nor its step is among these events.
    """

    def __init__(
        self,
        rows: Rows,
        buffer: WindowBuffer,
        event_filter: EventFilter,
        limits: tuple[RateLimit, RateLimit | None],
        is_sent: Callable[[int], bool],
        *,
        final: bool,
    ) -> None:
        """
        Args:
            limits: of spans, and of samples; `None`: no samples are sent.
            is_sent: whether the span with this id was sent before.
            final: whether no more events of the window will come.
        """
        self.dropped: Counter[str] = Counter()
        """Events that are not sent, by reason."""
        self._events = events = rows.events
        self._passing = event_filter.mask(events)
        spans, points = self._of(Kind.SPAN), self._of(*POINTS) & self._passing
        self.trace_step = buffer.trace_steps(events)
        """The step in whose trace each event is, or `RUN_TRACE`."""
        self.parent = parents(events, spans)
        self.roots = self._find_roots(spans & is_step(events), buffer)
        """Spans that are the root of a step's trace."""
        self.trace_step[self.roots] = events["step"][self.roots]
        self.orphans = self._find_orphans(spans, is_sent, final)
        """Spans that are to wait for a parent which has not ended."""
        self._sent = self._limit(spans & self._passing & ~self.orphans, limits[0])
        self.ancestor = nearest(self.parent, self._sent, self._sent | points)
        """Index of each event's nearest ancestor that is sent, else `NONE` or `UNKNOWN`."""
        self.event_of = self._find_owners(points)
        """Index of the span that a point is an event of, else `NONE`."""
        self._sent |= self._limit(points & (self.event_of == NONE), limits[0])
        self.samples = self._thin_out(self._of(*SAMPLES) & self._passing, limits[1])
        """Indices of what becomes points of metrics, in the order of time."""
        self.flows = np.flatnonzero(self._of(*FLOWS))
        """Indices of what may become links."""
        self.marks = int(self._of(Kind.STEP).sum())
        """How many step marks there are: they count with the window's span."""
        sent = np.flatnonzero(self._sent)
        self.spans = sent[np.lexsort((events["ts"][sent], self.trace_step[sent]))]
        """Indices of what is sent as spans, trace by trace in the order of time."""
        filtered = ~self._of(Kind.STEP, *FLOWS) & (~self._passing | ~self._of(Kind.SPAN, *POINTS, *SAMPLES))
        self._drop("filter", int(filtered.sum()))

    def _of(self, *kinds: Kind) -> Mask:
        return np.isin(self._events["kind"], [int(kind) for kind in kinds])

    def _drop(self, reason: str, count: int) -> None:
        if count:
            self.dropped[reason] += count

    def _find_roots(self, steps: Mask, buffer: WindowBuffer) -> Mask:
        """The first span of each step, unless one was sent before."""
        first: Mask = np.zeros(len(steps), np.bool_)
        seen: set[int] = set()
        for index in np.flatnonzero(steps).tolist():
            step = int(self._events["step"][index])
            first[index] = step >= 0 and step not in seen and step not in buffer.sent_steps
            seen.add(step)
        return first

    def _find_orphans(self, spans: Mask, is_sent: Callable[[int], bool], final: bool) -> Mask:
        """Spans of the run's trace whose topmost ancestor here has a parent that has not arrived."""
        orphans: Mask = np.zeros(len(spans), np.bool_)
        stepless = np.flatnonzero(spans & self._passing & (self.trace_step == RUN_TRACE))
        if final or not len(stepless):
            return orphans
        top = stepless.copy()
        for _ in range(MAX_DEPTH):
            above = self.parent[top]
            if (above < 0).all():
                break
            top = np.where(above >= 0, above, top)
        missing = self.parent[top] == UNKNOWN
        missing[missing] = [not is_sent(span) for span in self._events["parent"][top[missing]].tolist()]
        if int(missing.sum()) <= MAX_ORPHANS:
            orphans[stepless[missing]] = True
        return orphans

    def _limit(self, candidates: Mask, limit: RateLimit) -> Mask:
        """Keeps the steps, then the longest: a longer span is nearer to the root, so what is sent hangs together."""
        indices = np.flatnonzero(candidates)
        if not len(indices):
            return candidates
        events = self._events[indices]
        allowed = limit.reserve(len(indices), int(events["ts"].min()), int(events["ts"].max()))
        if allowed == len(indices):
            return candidates
        self._drop("rate", len(indices) - allowed)
        order = np.lexsort((events["ts"], -np.maximum(events["dur"], 0), ~self.roots[indices]))
        chosen: Mask = np.zeros(len(candidates), np.bool_)
        chosen[indices[order[:allowed]]] = True
        return chosen

    def _find_owners(self, points: Mask) -> Indices:
        """The nearest ancestor of a point in its trace, else its step. Points beyond `MAX_ATTACHED` of a span are dropped."""
        owner: Indices = np.full(len(points), NONE, np.int64)
        at = np.flatnonzero(points)
        above = self.ancestor[at]
        same = above >= 0
        same[same] = self.trace_step[above[same]] == self.trace_step[at[same]]
        owner[at] = np.where(same, above, self._root_of(at))
        owned = at[owner[at] >= 0]
        order = owned[np.argsort(owner[owned], kind="stable")]
        _, first, count = np.unique(owner[order], return_index=True, return_counts=True)
        surplus = order[np.arange(len(order)) - np.repeat(first, count) >= MAX_ATTACHED]
        self._drop("cap", len(surplus))
        points[surplus] = False
        owner[surplus] = NONE
        return owner

    def _root_of(self, indices: Indices) -> Indices:
        """Index of the step's span of each of these events, if it is sent now, else `NONE`."""
        roots = np.flatnonzero(self.roots & self._sent)
        if not len(roots):
            return np.full(len(indices), NONE, np.int64)
        order = roots[np.argsort(self.trace_step[roots])]
        place = np.searchsorted(self.trace_step[order], self.trace_step[indices])
        found = order[np.minimum(place, len(order) - 1)]
        return np.where(self.trace_step[found] == self.trace_step[indices], found, NONE)

    def _thin_out(self, samples: Mask, limit: RateLimit | None) -> Indices:
        """Selects as many as the limit allows, at equal distances, and always the latest."""
        indices = np.flatnonzero(samples)
        if not len(indices):
            return indices
        if limit is None:
            self._drop("filter", len(indices))
            return indices[:0]
        times = self._events["ts"][indices]
        indices = indices[np.argsort(times, kind="stable")]
        allowed = limit.reserve(len(indices), int(times.min()), int(times.max()))
        self._drop("rate", len(indices) - allowed)
        return indices[len(indices) - 1 - np.arange(allowed) * len(indices) // max(allowed, 1)][::-1]


def parents(events: Block, spans: Mask) -> Indices:
    """Returns the index of each event's parent among the spans, `NONE` or `UNKNOWN`.

    The parts of a span that was cut have one id. The parent is the part that began last before the event. As none begins later than its
    child, and of two that begin at once the one with the smaller id is the parent, there are no circles, whatever the ids are.
    """
    found: Indices = np.full(len(events), NONE, np.int64)
    rows, children = np.flatnonzero(spans & (events["id"] != 0)), np.flatnonzero(events["parent"] != 0)
    if not len(children):
        return found
    # Sorts spans by their id and children by their parent's id, so that the parent stands before its children.
    ids = np.concatenate([events["id"][rows], events["parent"][children]])
    times = np.concatenate([events["ts"][rows], events["ts"][children]])
    is_child = np.arange(len(ids)) >= len(rows)
    order = np.lexsort((is_child, times, ids))
    ids, is_span = ids[order], ~is_child[order]
    before = np.maximum.accumulate(np.where(is_span, np.arange(len(order)), NONE))
    fits = (before >= 0) & (ids[before] == ids)
    place = np.where(fits, before, NONE)[~is_span]
    child = children[order[~is_span] - len(rows)]
    parent: Indices = np.full(len(child), UNKNOWN, np.int64)
    parent[place >= 0] = rows[order[place[place >= 0]]]
    at = np.maximum(parent, 0)
    at_once = (parent >= 0) & spans[child] & (events["ts"][at] == events["ts"][child])
    found[child] = np.where(at_once & (events["id"][at] >= events["id"][child]), NONE, parent)
    return found


def nearest(parent: Indices, sent: Mask, asking: Mask) -> Indices:
    """Returns the index of the nearest ancestor that is sent, for the events in `asking`, else `NONE` or `UNKNOWN`."""
    ancestor = parent.copy()
    ancestor[~asking] = NONE
    open_ = np.flatnonzero(ancestor >= 0)
    for _ in range(MAX_DEPTH):
        open_ = open_[~sent[ancestor[open_]]]
        if not len(open_):
            break
        ancestor[open_] = parent[ancestor[open_]]
        open_ = open_[ancestor[open_] >= 0]
    ancestor[open_] = NONE
    return ancestor

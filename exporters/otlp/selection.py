"""What of complete steps is sent, as what, and where it hangs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec
import numpy as np

from stepscope.exporters.otlp.ancestors import DEEPEST, NONE, UNKNOWN, Indices, Mask, nearest, parents
from stepscope.exporters.otlp.budget import Budget
from stepscope.exporters.otlp.held import HeldWindow, Rows
from stepscope.exporters.otlp.wanted import Wanted, is_step
from stepscope.runtime.events.record import Kind

MOST_ATTACHED = 128
"""Events of one span, and links: the limit of OpenTelemetry's SDKs, which stores count on."""

MOST_ORPHANS = 4096
"""Spans of the run's trace that wait for a parent that has not ended."""

POINTS = (Kind.INSTANT, Kind.ASYNC_BEGIN, Kind.ASYNC_END, Kind.METADATA, Kind.GAP)
SAMPLES = (Kind.COUNTER, Kind.MEMORY)
FLOWS = (Kind.FLOW_START, Kind.FLOW_STEP, Kind.FLOW_END)


class Limits(msgspec.Struct, frozen=True):
    """What may be sent at all."""

    wanted: Wanted
    spans: Budget
    samples: Budget | None
    """`None`: no metrics are sent."""


class Selection:
    """Sorts events into those that are sent and those that are not; each is in one place only.

    A point, such as an instant, is an event of the span in which it happened. One whose step is not among these
    events is a span without duration.
    """

    def __init__(
        self, rows: Rows, held: HeldWindow, limits: Limits, known: Callable[[int], bool], *, final: bool
    ) -> None:
        """
        Args:
            rows: the events of complete steps.
            held: their window.
            limits: what may be sent.
            known: whether the span with this id was sent before.
            final: whether no span will come any more.
        """
        self.dropped: Counter[str] = Counter()
        """Events that are not sent, by reason."""
        self._events = events = rows.events
        self._kinds = events["kind"]
        self._wanted = limits.wanted.mask(events)
        spans = self._of(Kind.SPAN)
        self.homes = held.homes(events)
        """The step in whose trace each event is; -1: that of the run."""
        self.parent = parents(events, spans)
        self.roots = self._first_of_each_step(spans & is_step(events), held)
        """Spans that are the root of a step's trace."""
        self.homes[self.roots] = events["step"][self.roots]
        self.orphans = self._without_parent(spans, known, final)
        """Spans to be held, because a parent that they should hang on has not ended."""
        points = self._of(*POINTS) & self._wanted
        self._sent = self._affordable(spans & self._wanted & ~self.orphans, limits.spans)
        self.up = nearest(self.parent, self._sent, self._sent | points)
        """Index of the nearest ancestor that is sent: also NONE and UNKNOWN."""
        self.owner = self._owners(points)
        """Index of the span that a point is an event of, else NONE."""
        self._sent |= self._affordable(points & (self.owner == NONE), limits.spans)
        self.samples = self._thinned(self._of(*SAMPLES) & self._wanted, limits.samples)
        """Indices of what becomes points of metrics, in the order of time."""
        self.flows = np.flatnonzero(self._of(*FLOWS))
        """Indices of what may become links."""
        self.marks = self._step_marks()
        """Index of the step's span for each step mark that it stands for, else NONE."""
        self.loose_marks = int((self.marks[self._of(Kind.STEP)] == NONE).sum())
        """Marks of steps whose span is not sent, such as the one at a loop's end that begins no further step."""
        self.spans = self._in_order()
        """Indices of what is sent as spans, trace by trace in the order of time."""
        filtered = ~self._of(Kind.STEP, *FLOWS) & (~self._wanted | ~self._of(Kind.SPAN, *POINTS, *SAMPLES))
        self.dropped["filter"] += int(filtered.sum())
        self.dropped += Counter()

    def _of(self, *kinds: Kind) -> Mask:
        return np.isin(self._kinds, [int(kind) for kind in kinds])

    def _first_of_each_step(self, steps: Mask, held: HeldWindow) -> Mask:
        first: Mask = np.zeros(len(steps), np.bool_)
        seen: set[int] = set()
        for index in np.flatnonzero(steps).tolist():
            step = int(self._events["step"][index])
            first[index] = step >= 0 and step not in seen and step not in held.roots
            seen.add(step)
        return first

    def _without_parent(self, spans: Mask, known: Callable[[int], bool], final: bool) -> Mask:
        """Spans of the run's trace on whose way up is one that is not here yet."""
        orphans: Mask = np.zeros(len(spans), np.bool_)
        outside = np.flatnonzero(spans & self._wanted & (self.homes < 0))
        if final or not len(outside):
            return orphans
        top = outside.copy()
        for _ in range(DEEPEST):
            above = self.parent[top]
            if (above < 0).all():
                break
            top = np.where(above >= 0, above, top)
        missing = self.parent[top] == UNKNOWN
        missing[missing] = [not known(span) for span in self._events["parent"][top[missing]].tolist()]
        if int(missing.sum()) <= MOST_ORPHANS:
            orphans[outside[missing]] = True
        return orphans

    def _affordable(self, candidates: Mask, budget: Budget) -> Mask:
        """Of these the steps, then the longest: who is longer is nearer to the root, so what is sent hangs together."""
        indices = np.flatnonzero(candidates)
        if not len(indices):
            return candidates
        events = self._events[indices]
        granted = budget.take(len(indices), int(events["ts"].min()), int(events["ts"].max()))
        if granted == len(indices):
            return candidates
        self.dropped["rate"] += len(indices) - granted
        order = np.lexsort((events["ts"], -np.maximum(events["dur"], 0), ~self.roots[indices]))
        chosen: Mask = np.zeros(len(candidates), np.bool_)
        chosen[indices[order[:granted]]] = True
        return chosen

    def _owners(self, points: Mask) -> Indices:
        """The span that each point is an event of: the nearest that is sent, or the step; up to as many as one may have."""
        owner: Indices = np.full(len(points), NONE, np.int64)
        at = np.flatnonzero(points)
        up = self.up[at]
        same = up >= 0
        same[same] = self.homes[up[same]] == self.homes[at[same]]
        owner[at] = np.where(same, up, self._root_of(at))
        owned = at[owner[at] >= 0]
        order = owned[np.argsort(owner[owned], kind="stable")]
        _, place = _places(owner[order])
        surplus = order[place >= MOST_ATTACHED]
        self.dropped["cap"] += len(surplus)
        self._wanted[surplus] = True
        points[surplus] = False
        owner[surplus] = NONE
        return owner

    def _root_of(self, indices: Indices) -> Indices:
        """Index of the step's span of each of these events, if it is sent now, else NONE."""
        roots = np.flatnonzero(self.roots & self._sent)
        if not len(roots):
            return np.full(len(indices), NONE, np.int64)
        order = roots[np.argsort(self.homes[roots])]
        place = np.minimum(np.searchsorted(self.homes[order], self.homes[indices]), len(order) - 1)
        found = order[place]
        return np.where(self.homes[found] == self.homes[indices], found, NONE)

    def _thinned(self, samples: Mask, budget: Budget | None) -> Indices:
        """Those that may be sent, evenly chosen."""
        indices = np.flatnonzero(samples)
        if not len(indices):
            return indices
        if budget is None:
            self.dropped["filter"] += len(indices)
            return indices[:0]
        times = self._events["ts"][indices]
        indices = indices[np.argsort(times, kind="stable")]
        granted = budget.take(len(indices), int(times.min()), int(times.max()))
        self.dropped["rate"] += len(indices) - granted
        # The latest are always among them.
        return indices[len(indices) - 1 - np.arange(granted) * len(indices) // max(granted, 1)][::-1]

    def _step_marks(self) -> Indices:
        marks: Indices = np.full(len(self._kinds), NONE, np.int64)
        at = np.flatnonzero(self._of(Kind.STEP))
        marks[at] = self._root_of(at)
        return marks

    def _in_order(self) -> Indices:
        indices = np.flatnonzero(self._sent)
        return indices[np.lexsort((self._events["ts"][indices], self.homes[indices]))]


def _places(groups: Indices) -> tuple[Indices, Indices]:
    """Of sorted groups: the first index of each one's group, and its place within it."""
    begins = np.flatnonzero(np.diff(groups, prepend=groups[:1] - 1)) if len(groups) else groups
    counts = np.diff(np.append(begins, len(groups)))
    first = np.repeat(begins, counts)
    return first, np.arange(len(groups)) - first

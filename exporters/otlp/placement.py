"""Where spans hang: their traces, ids, parents and links."""

from __future__ import annotations

from collections import Counter

import numpy as np
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from stepscope.exporters.otlp.ancestors import DEEPEST, UNKNOWN
from stepscope.exporters.otlp.held import HeldWindow, Rows
from stepscope.exporters.otlp.ids import RunIds
from stepscope.exporters.otlp.memory import Memory, Sent
from stepscope.exporters.otlp.selection import MOST_ATTACHED, Selection
from stepscope.exporters.otlp.values import attributes
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Kind

Flow = tuple[int, int, int]
"""What ties the events of a flow together: id, name, category."""


class Places:
    """What was sent of a run, as far as later events need it."""

    def __init__(self, ids: RunIds) -> None:
        self.ids = ids
        self._sent: Memory[tuple[int, int], Sent] = Memory()
        self._used: Memory[int, None] = Memory()
        self._flows: Memory[Flow, Sent] = Memory()

    def known(self, window: int, span: int) -> bool:
        """Whether the span of this event is sent."""
        return (window, span) in self._sent

    def sent(self, window: int, span: int) -> Sent | None:
        """Where the span of this event is, if it is sent."""
        return self._sent.get((window, span))

    def put(self, window: int, span: int, place: Sent) -> None:
        """Remembers where the span of an event is."""
        if span:
            self._sent.put((window, span), place)

    def unused(self, number: int) -> int:
        """An id that no span of late has had: this one, unless an equal event was sent."""
        while number == 0 or number in self._used:
            number = self.ids.other(number)
        self._used.put(number, None)
        return number

    def begin(self, flow: Flow, place: Sent) -> None:
        """A flow begins in this span."""
        self._flows.put(flow, place)

    def origin(self, flow: Flow) -> Sent | None:
        """The span in which a flow began."""
        return self._flows.get(flow)


class Placement:
    """Gives each chosen span of some steps its trace, its id and what it is tied to."""

    def __init__(self, rows: Rows, held: HeldWindow, chosen: Selection, places: Places) -> None:
        self.dropped: Counter[str] = Counter()
        """Events of flows that tie nothing together, by reason."""
        self._rows, self._chosen, self._places = rows, chosen, places
        self._window = held.index
        self.at = self._place(held)
        """Trace and id of each span that is sent, by its index."""
        self._own = {place.span for place in self.at.values()}
        self.flows = self._tie()
        """By the index of a span: the flows that end in it, and how many events of flows it stands for."""

    def _place(self, held: HeldWindow) -> dict[int, Sent]:
        chosen, events = self._chosen, self._rows.events[self._chosen.spans]
        ids, window = self._places.ids, self._window
        traces: dict[int, bytes] = {-1: ids.trace}
        placed: dict[int, Sent] = {}
        rows = zip(
            chosen.spans.tolist(),
            chosen.homes[chosen.spans].tolist(),
            chosen.roots[chosen.spans].tolist(),
            ids.events(window, events).tolist(),
            events["id"].tolist(),
            strict=True,
        )
        for index, home, root, number, event in rows:
            trace = traces.get(home)
            if trace is None:
                trace = traces[home] = ids.step_trace(window, home)
            span = ids.step(window, home) if root else self._places.unused(number).to_bytes(8, "big")
            placed[index] = place = Sent(trace, span, home)
            self._places.put(window, event, place)
            if root:
                held.sent_step(home)
        begins, ends = events["ts"].tolist(), (events["ts"] + np.maximum(events["dur"], 0)).tolist()
        for place, begin, end in zip(placed.values(), begins, ends, strict=True):
            held.sent_in_step(place.home, begin, end)
        return placed

    def _tie(self) -> dict[int, list[tuple[Sent | None, int]]]:
        found: dict[int, list[tuple[Sent | None, int]]] = {}
        events = self._rows.events[self._chosen.flows]
        owners = self._chosen.parent[self._chosen.flows].tolist()
        numbers = [events[field].tolist() for field in ("id", "name", "category", "kind")]
        flows = sorted(zip(owners, *numbers, strict=True), key=lambda flow: flow[4] != int(Kind.FLOW_START))
        for owner, number, name, category, kind in flows:
            key, here = (number, name, category), self.at.get(owner)
            origin = None if kind == int(Kind.FLOW_START) else self._places.origin(key)
            if here is None or (origin is None and kind != int(Kind.FLOW_START)) or origin == here:
                self.dropped["unattached"] += 1
            elif len(ties := found.setdefault(owner, [])) >= MOST_ATTACHED:
                self.dropped["cap"] += 1
            else:
                ties.append((origin, name))
            if here is not None and kind == int(Kind.FLOW_START):
                self._places.begin(key, here)
        return found

    def hang(self, span: Span, index: int) -> None:
        """Gives a span its parent: the nearest one in its trace, else the step or window. One elsewhere is linked."""
        me, ids = self.at[index], self._places.ids
        if self._chosen.roots[index]:
            link(span, Sent(ids.trace, ids.window(self._window), -1), "stepscope.link", "window")
            return
        up = int(self._chosen.up[index])
        above = self.at.get(up) if up >= 0 else self._sent_before(index)
        if above is not None and above.trace == me.trace and above.span != me.span:
            span.parent_span_id = above.span
            return
        span.parent_span_id = ids.step(self._window, me.home) if me.home >= 0 else ids.window(self._window)
        if above is not None and above.span != me.span:
            link(span, above, "stepscope.link", "parent")

    def _sent_before(self, index: int) -> Sent | None:
        """The first ancestor that is not among these events. One of them by the number of a missing one is none: ids that
        were given twice would make circles."""
        above = self._places.sent(self._window, self._missing(index))
        return None if above is not None and above.span in self._own else above

    def _missing(self, index: int) -> int:
        """Id of the first ancestor that is not among these events; 0 if the way up does not end at one."""
        for _ in range(DEEPEST):
            above = int(self._chosen.parent[index])
            if above < 0:
                return int(self._rows.events["parent"][index]) if above == UNKNOWN else 0
            index = above
        return 0

    def link_flows(self, span: Span, index: int) -> int:
        """Links a span to where the flows began that end in it.

        Returns:
            How many events it stands for by that.
        """
        ties = self.flows.get(index, [])
        for origin, name in ties:
            if origin is not None:
                link(span, origin, "stepscope.flow", strings.text(name))
        return len(ties)


def link(span: Span, other: Sent, key: str, value: str) -> None:
    """Links a span to another, and says by an attribute why."""
    span.links.add(trace_id=other.trace, span_id=other.span, attributes=attributes({key: value}))

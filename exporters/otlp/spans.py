"""Spans of OTLP, made of the events that were selected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from stepscope.exporters.otlp.ancestors import NONE
from stepscope.exporters.otlp.held import Rows
from stepscope.exporters.otlp.options import OtlpOptions
from stepscope.exporters.otlp.placement import Placement
from stepscope.exporters.otlp.request import Request
from stepscope.exporters.otlp.selection import Selection
from stepscope.exporters.otlp.values import attributes, clean
from stepscope.exporters.otlp.whereabouts import Whereabouts
from stepscope.runtime import _core
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Flag, Kind
from stepscope.runtime.export.run import Run

SAMPLED = 0x101
"""W3C flag of a trace that is recorded, and that its parent is no remote one (`SpanFlags`)."""

LATEST = (1 << 64) - 1

_SPAN, _GAP = int(Kind.SPAN), int(Kind.GAP)
_INLINE, _CLIPPED, _OPEN = int(Flag.ARG_INLINE), int(Flag.CLIPPED), int(Flag.OPEN)
_ERROR, _NUMBERED = int(Flag.ERROR), int(Flag.NUMBERED)

Weighted = tuple[Span, int]
"""A span, and how many events it stands for."""


def unix_ns(run: Run, at: int) -> int:
    """Unix time in ns that the clock showed at a monotonic time, as far as the protocol can hold it."""
    return min(max(run.wall(at), 0), LATEST)


class SpanMaker:
    """Makes requests of selected events, and of our own spans for runs, windows and steps."""

    def __init__(self, run: Run, resource: Resource, scope: InstrumentationScope, options: OtlpOptions) -> None:
        self._run = run
        self._resource, self._scope = resource, scope
        self._most, self._bytes = options.batch_spans, options.batch_bytes
        self._whereabouts = Whereabouts(run.pid)
        self._categories: dict[int, KeyValue] = {}
        self._names: dict[int, str] = {}

    def requests(self, rows: Rows, window: int, chosen: Selection, placement: Placement) -> Iterator[Request]:
        """The requests for what was chosen, made one by one as they are sent."""
        return self._batches(self._spans(rows, chosen, placement), window)

    def own(self, spans: list[Weighted], window: int = 0) -> Iterator[Request]:
        """Requests for spans of ours, and how many events of a window each stands for."""
        return self._batches(iter(spans), window)

    # inside

    def _spans(self, rows: Rows, chosen: Selection, placement: Placement) -> Iterator[Weighted]:
        attached: dict[int, list[int]] = {}
        for index in np.flatnonzero(chosen.owner >= 0).tolist():
            attached.setdefault(int(chosen.owner[index]), []).append(index)
        marked: list[int] = chosen.marks[chosen.marks != NONE].tolist()
        marks = Counter(marked)
        for index in chosen.spans.tolist():
            span = self._span(rows, index, chosen, placement)
            own = attached.get(index, ())
            for point in own:
                span.events.append(self._event(rows, point))
            yield span, 1 + len(own) + placement.link_flows(span, index) + marks.get(index, 0)

    def _span(self, rows: Rows, index: int, chosen: Selection, placement: Placement) -> Span:
        # The fields of an event in the order of EVENT_DTYPE: one call for all is what makes this fast.
        ts, dur, own_ns, _, _, _, at, length, name, track, step, category, kind, flags = rows.events[index].item()
        me, begin = placement.at[index], unix_ns(self._run, ts)
        span = Span(
            trace_id=me.trace,
            span_id=me.span,
            name=self._name(name, step, flags),
            kind=Span.SPAN_KIND_INTERNAL,
            start_time_unix_nano=begin,
            # Not the clock's time at its end: one that was set meanwhile would change how long it was.
            end_time_unix_nano=min(begin + max(dur, 0), LATEST) if kind == _SPAN else begin,
            flags=SAMPLED,
        )
        about: dict[str, Any] = self._arguments(rows, index, at, length, flags)
        if flags & _ERROR:
            span.status.code = Status.STATUS_CODE_ERROR
            span.status.message = about["error.type"] = clean(str(about.pop("error", "")))
        if step >= 0:
            about["stepscope.step"] = step
        if kind == _SPAN and own_ns != dur and not chosen.roots[index]:
            about["stepscope.self_ns"] = own_ns
        source = rows.sources[int(rows.batch[index])]
        if source != "recorder":
            about["stepscope.source"] = source
        if flags & _OPEN:
            about["stepscope.open"] = True
        if flags & _CLIPPED:
            about["stepscope.clipped"] = True
        span.attributes.extend([*attributes(about), self._category(category), *self._whereabouts.of(track)])
        placement.hang(span, index)
        return span

    def _event(self, rows: Rows, index: int) -> Span.Event:
        ts, dur, _, _, number, _, at, length, name, _, step, category, kind, flags = rows.events[index].item()
        about = self._arguments(rows, index, at, length, flags)
        if kind == _GAP:
            about |= {"stepscope.gap_ns": dur, "stepscope.lost": number}
        return Span.Event(
            time_unix_nano=unix_ns(self._run, ts),
            name=self._name(name, step, flags),
            attributes=[*attributes(about), self._category(category)],
        )

    def _name(self, name: int, step: int, flags: int) -> str:
        """As `strings.name_of`, each text looked up once."""
        text = self._names.get(name)
        if text is None:
            text = self._names[name] = strings.text(name)
        return f"{text}#{step}" if flags & _NUMBERED else text

    @staticmethod
    def _arguments(rows: Rows, index: int, at: int, length: int, flags: int) -> dict[str, Any]:
        if flags & _INLINE:
            return {strings.text(at): length}
        if not length:
            return {}
        try:
            return dict(_core.decode_arguments(rows.heaps[int(rows.batch[index])], at, length))
        except ValueError:
            return {"stepscope.bad_arguments": True}

    def _category(self, category: int) -> KeyValue:
        if category not in self._categories:
            value = AnyValue(string_value=strings.text(category))
            self._categories[category] = KeyValue(key="stepscope.category", value=value)
        return self._categories[category]

    def _batches(self, spans: Iterator[Weighted], window: int) -> Iterator[Request]:
        scope = ScopeSpans(scope=self._scope)
        size = 0
        weights: list[int] = []
        for span, weight in spans:
            more = span.ByteSize() + 8
            if scope.spans and (len(scope.spans) >= self._most or size + more > self._bytes):
                yield self._request(scope, weights, window)
                scope, size, weights = ScopeSpans(scope=self._scope), 0, []
            scope.spans.append(span)
            size += more
            weights.append(weight)
        if scope.spans:
            yield self._request(scope, weights, window)

    def _request(self, scope: ScopeSpans, weights: list[int], window: int) -> Request:
        body = ExportTraceServiceRequest(resource_spans=[ResourceSpans(resource=self._resource, scope_spans=[scope])])
        return Request("traces", body.SerializeToString(), window, tuple(weights))

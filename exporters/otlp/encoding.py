"""Makes requests of OTLP from events: spans, metrics, their ids, and what ties them together."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any, TypeAlias
from urllib.parse import unquote

import msgspec
import numpy as np
from numpy.typing import NDArray
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue
from opentelemetry.proto.metrics.v1 import metrics_pb2 as metrics
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from stepscope.exporters.network.outcomes import Outcomes
from stepscope.exporters.otlp.options import OtlpOptions, Signal
from stepscope.exporters.otlp.selection import (
    MAX_ATTACHED,
    MAX_DEPTH,
    RUN_TRACE,
    UNKNOWN,
    EventFilter,
    RateLimit,
    Rows,
    Selection,
    WindowBuffer,
    map_ids,
    remember,
)
from stepscope.runtime import _core
from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.json_values import plain
from stepscope.runtime.events.record import Block, EventBatch, Flag, Kind
from stepscope.runtime.events.tracks import TrackKind
from stepscope.runtime.export.run import Run
from stepscope.runtime.files.paths import readable
from stepscope.runtime.version import VERSION
from stepscope.runtime.windows.window import Window

SAMPLED = 0x101
"""W3C flag of a trace that is recorded, and that its parent is no remote one (`SpanFlags`)."""
MAX_UNIX_NS = (1 << 64) - 1
METRICS_INTERVAL_NS = 10_000_000_000
"""ns of recorded time between two requests for the histogram of steps."""
STEP_DURATION = "stepscope.step.duration"
STEP_BOUNDS = tuple(scale * step for scale in (0.0001, 0.001, 0.01, 0.1, 1.0, 10.0) for step in (1, 2.5, 5))
"""Upper bounds of the histogram's buckets, in seconds: from 0.1 ms to 50 s."""

_SPAN, _GAP, _FLOW_START = int(Kind.SPAN), int(Kind.GAP), int(Kind.FLOW_START)
_INLINE, _CLIPPED, _OPEN = int(Flag.ARG_INLINE), int(Flag.CLIPPED), int(Flag.OPEN)
_ERROR, _NUMBERED = int(Flag.ERROR), int(Flag.NUMBERED)

Part: TypeAlias = Span | metrics.Metric
"""One entry of a request; a metric has one point."""
Ids: TypeAlias = NDArray[np.uint64]
Flow: TypeAlias = tuple[int, int, int]
"""The key that all events of a flow share: id, name, category."""


def any_value(value: Any) -> AnyValue:
    """Converts text, numbers and lists of one type; everything else, which stores do not search, becomes JSON text."""
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        fits = -(1 << 63) <= value < 1 << 63
        return AnyValue(int_value=value) if fits else AnyValue(string_value=str(value))
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, str):
        return AnyValue(string_value=readable(value))
    items: Any = value
    if isinstance(value, list):
        if all(isinstance(item, str | bool | int | float) and type(item) is type(items[0]) for item in items):
            return AnyValue(array_value=ArrayValue(values=map(any_value, items)))
    return AnyValue(string_value=msgspec.json.encode(plain(value)).decode())


def attributes(values: Mapping[str, Any]) -> list[KeyValue]:
    """Converts a mapping to attributes. `None` makes none; an empty key, which the protocol forbids, becomes `unnamed`."""
    return [
        KeyValue(key=readable(key) or "unnamed", value=any_value(value))
        for key, value in values.items()
        if value is not None
    ]


def resource(run: Run, instance: str, options: OtlpOptions) -> dict[str, str | bool | int | float]:
    """Returns the attributes of the resource. Names are those of OpenTelemetry's semantic conventions, if there are any.

    Args:
        instance: distinguishes this run from all others.
        options: their attributes replace those of the environment.
    """
    found: dict[str, str | bool | int | float | None] = {
        "service.name": run.name,
        "service.instance.id": instance,
        "host.name": run.host,
        "process.pid": run.pid,
        "telemetry.sdk.name": "stepscope",
        "telemetry.sdk.language": "python",
        "telemetry.sdk.version": VERSION,
        "stepscope.run": run.name,
        "stepscope.rank": run.rank,
        "stepscope.world_size": run.world_size,
        "stepscope.job.id": run.job or None,
    }
    # `key=value,key=value`, percent-encoded; the specification says to leave out what is malformed.
    pairs = (part.partition("=") for part in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "").split(","))
    found |= {unquote(key.strip()): unquote(value.strip()) for key, equals, value in pairs if equals and key.strip()}
    name = os.environ.get("OTEL_SERVICE_NAME")
    found |= {"service.name": name} if name else {}
    found |= dict(options.resource)
    found |= {"service.name": options.service_name} if options.service_name else {}
    return {key: value for key, value in found.items() if value is not None}


class RunIds:
    """Derives ids of traces and spans from what distinguishes the run: host, process, rank, name and its clocks' first reading.

    So ids differ between ranks, and an event has the same id whenever it is sent: again after a failure, or from a journal.
    """

    def __init__(self, run: Run) -> None:
        facts = (run.host, run.pid, run.rank, run.name, run.anchor.wall_ns, run.anchor.monotonic_ns)
        self._key = blake2b(repr(facts).encode("utf-8", "backslashreplace"), digest_size=32).digest()
        self.instance = self._hash("instance", 16).hex()
        """Identifies the run."""
        self.trace = self._hash("run", 16)
        """Trace of the run: its windows, and what belongs to no single step."""
        self.span = self._hash("run span", 8)

    def window(self, window: int) -> bytes:
        """Span of a window, in the run's trace."""
        return self._hash(f"window {window}", 8)

    def step_trace(self, window: int, step: int) -> bytes:
        """Trace of a step."""
        return self.trace if step == RUN_TRACE else self._hash(f"trace {window} {step}", 16)

    def step(self, window: int, step: int) -> bytes:
        """Span of a step, the root of its trace."""
        return self._hash(f"step {window} {step}", 8)

    def events(self, window: int, events: Block) -> Ids:
        """Span ids of events; equal events have equal ids."""
        mixed: Ids = np.full(len(events), np.uint64(int.from_bytes(self._hash(f"events {window}", 8), "big")))
        for field in ("id", "ts", "dur"):
            mixed = _mix(mixed ^ events[field].astype(np.uint64))
        # Numbers of tracks and names are this process's own, so their texts are hashed: a process that sends a journal
        # has other numbers.
        mixed = _mix(mixed ^ map_ids(events["track"], _hash_track, np.uint64))
        return _mix(mixed ^ map_ids(events["name"], lambda name: _hash_text(strings.text(name)), np.uint64))

    def _hash(self, what: str, size: int) -> bytes:
        found = blake2b(what.encode(), digest_size=size, key=self._key).digest()
        return found if any(found) else b"\x01" * size  # all zeros mean that there is no id


def _hash_track(number: int) -> int:
    track = tracks.get(number)
    return 0 if track is None else _hash_text(f"{int(track.kind)} {track.pid} {track.tid} {track.name}")


def _hash_text(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def _mix(values: Ids) -> Ids:
    """splitmix64's finaliser: every bit of the input changes half of the output's."""
    with np.errstate(over="ignore"):
        mixed: Any = values + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))  # type: ignore[no-any-return]


class Request(msgspec.Struct, frozen=True):
    """A request: its parts, and the events that they represent."""

    signal: Signal
    origin: Origin
    parts: list[Part]
    window: int
    """The window of its events."""
    weights: list[int]
    """How many events each part stands for; none for spans such as that of the run."""

    @property
    def events(self) -> int:
        """How many events it carries."""
        return sum(self.weights)

    def encode(self) -> bytes:
        """Returns the body to post."""
        return self.origin.encode(self.signal, self.parts)

    def halves(self) -> tuple[Request, Request]:
        """Returns two requests that carry the same parts in the same order."""
        middle = len(self.parts) // 2
        return (
            msgspec.structs.replace(self, parts=self.parts[:middle], weights=self.weights[:middle]),
            msgspec.structs.replace(self, parts=self.parts[middle:], weights=self.weights[middle:]),
        )


class SentSpan(msgspec.Struct, frozen=True, gc=False):
    """Trace and id of a span that was sent."""

    trace: bytes
    span: bytes


class Origin:
    """State that all requests of a run share: ids, resource, limits of size, attributes, and the spans that were sent."""

    def __init__(self, run: Run, options: OtlpOptions) -> None:
        self.run, self.ids = run, RunIds(run)
        self.sent: dict[tuple[int, int], SentSpan] = {}
        """Spans that were sent, by window and id of the event."""
        self.flows: dict[Flow, SentSpan] = {}
        """The span in which each flow began."""
        self._used_ids: dict[int, None] = {}
        self._resource = Resource(attributes=attributes(resource(run, self.ids.instance, options)))
        self._scope = InstrumentationScope(name="stepscope", version=VERSION)
        self._max_parts, self._max_bytes = options.batch_spans, options.batch_bytes
        self._tracks: dict[int, list[KeyValue]] = {}
        self._categories: dict[int, KeyValue] = {}

    def unused_id(self, number: int) -> bytes:
        """Returns the id of a span, or another one if an equal event was sent with it."""
        while number == 0 or number in self._used_ids:
            number = (number * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        remember(self._used_ids, number, None)
        return number.to_bytes(8, "big")

    def unix_ns(self, at: int) -> int:
        """Returns the Unix time in ns that the clock showed at a monotonic time, within the range of the protocol."""
        return min(max(self.run.wall(at), 0), MAX_UNIX_NS)

    def track(self, number: int) -> list[KeyValue]:
        """Returns the attributes of a track: thread, task or stream of a device; none if the track is unknown."""
        if number not in self._tracks:
            self._tracks[number] = attributes(self._describe(number))
        return self._tracks[number]

    def _describe(self, number: int) -> dict[str, str | int]:
        track = tracks.get(number)
        if track is None:
            return {}
        if track.kind is TrackKind.STREAM:
            return {"stepscope.device": track.pid, "stepscope.stream": track.tid, "stepscope.track": track.name}
        found: dict[str, str | int] = {} if track.pid == self.run.pid else {"process.pid": track.pid}
        if track.kind is TrackKind.THREAD:
            found |= {"thread.id": track.tid, "thread.name": track.name}
        elif track.kind is TrackKind.TASK:
            found["stepscope.task"] = track.name
        return found

    def category(self, number: int) -> KeyValue:
        """Returns the attribute of a category."""
        if number not in self._categories:
            (self._categories[number],) = attributes({"stepscope.category": strings.text(number)})
        return self._categories[number]

    def requests(self, signal: Signal, parts: Iterable[tuple[Part, int]], window: int = 0) -> Iterator[Request]:
        """Divides parts, each with its weight, into requests of a limited size. Takes each part when it is needed."""
        batch: list[Part] = []
        weights: list[int] = []
        size = 0
        for part, weight in parts:
            more = part.ByteSize() + 8
            if batch and (len(batch) >= self._max_parts or size + more > self._max_bytes):
                yield Request(signal, self, batch, window, weights)
                batch, weights, size = [], [], 0
            batch.append(part)
            weights.append(weight)
            size += more
        if batch:
            yield Request(signal, self, batch, window, weights)

    def encode(self, signal: Signal, parts: list[Part]) -> bytes:
        """Returns the body of a request."""
        # Filled in place, as a message that is passed to another's constructor is copied.
        if signal == "traces":
            traces = ExportTraceServiceRequest()
            spans = traces.resource_spans.add(resource=self._resource).scope_spans.add(scope=self._scope)
            spans.spans.extend(parts)  # type: ignore[arg-type]
            return traces.SerializeToString()
        request = ExportMetricsServiceRequest()
        scope = request.resource_metrics.add(resource=self._resource).scope_metrics.add(scope=self._scope)
        gauges: dict[str, metrics.Gauge] = {}
        for metric in parts:
            assert isinstance(metric, metrics.Metric)
            if (gauge := gauges.get(metric.name)) is not None:
                gauge.data_points.extend(metric.gauge.data_points)
            else:
                scope.metrics.append(metric)
                gauges[metric.name] = scope.metrics[-1].gauge
        return request.SerializeToString()


class SpanEncoder:
    """Makes spans of the events that were chosen of some steps: assigns traces, ids, parents and links."""

    def __init__(self, origin: Origin, rows: Rows, buffer: WindowBuffer, chosen: Selection) -> None:
        self.dropped: Counter[str] = Counter()
        """Events of flows that link nothing, by reason."""
        self._origin, self._rows, self._chosen, self._window = origin, rows, chosen, buffer.index
        self._places = self._assign_ids(buffer)
        self._own = {place.span for place in self._places.values()}
        self._flows = self._find_flows()
        """Events of flows that count with each span, by its index: where the flow began, and its name."""

    def spans(self) -> Iterator[tuple[Span, int]]:
        """Yields each span with the number of events that it stands for."""
        chosen = self._chosen
        points: dict[int, list[int]] = {}
        for index in np.flatnonzero(chosen.event_of >= 0).tolist():
            points.setdefault(int(chosen.event_of[index]), []).append(index)
        for index in chosen.spans.tolist():
            span, own, flows = self._span(index), points.get(index, ()), self._flows.get(index, ())
            span.events.extend(map(self._event, own))
            for begin, name in flows:
                if begin is not None:
                    _link(span, begin, "stepscope.flow", strings.text(name))
            yield span, 1 + len(own) + len(flows)

    def _assign_ids(self, buffer: WindowBuffer) -> dict[int, SentSpan]:
        chosen, window, ids = self._chosen, self._window, self._origin.ids
        events = self._rows.events[chosen.spans]
        traces: dict[int, bytes] = {}
        places: dict[int, SentSpan] = {}
        spans = zip(
            chosen.spans.tolist(),
            chosen.trace_step[chosen.spans].tolist(),
            chosen.roots[chosen.spans].tolist(),
            ids.events(window, events).tolist(),
            events["id"].tolist(),
            events["ts"].tolist(),
            (events["ts"] + np.maximum(events["dur"], 0)).tolist(),
            strict=True,
        )
        for index, step, root, number, event, begin, end in spans:
            if step not in traces:
                traces[step] = ids.step_trace(window, step)
            span = ids.step(window, step) if root else self._origin.unused_id(number)
            places[index] = SentSpan(traces[step], span)
            if event:
                remember(self._origin.sent, (window, event), places[index])
            if root:
                buffer.step_sent(step)
            else:
                buffer.span_sent(step, begin, end)
        return places

    def _find_flows(self) -> dict[int, list[tuple[SentSpan | None, int]]]:
        found: dict[int, list[tuple[SentSpan | None, int]]] = {}
        events = self._rows.events[self._chosen.flows]
        parents = self._chosen.parent[self._chosen.flows].tolist()
        fields = [events[field].tolist() for field in ("id", "name", "category", "kind")]
        flows = sorted(zip(parents, *fields, strict=True), key=lambda flow: flow[4] != _FLOW_START)
        for parent, number, name, category, kind in flows:
            flow, here, begins = (number, name, category), self._places.get(parent), kind == _FLOW_START
            origin = None if begins else self._origin.flows.get(flow)
            if here is None or (origin is None and not begins) or origin == here:
                self.dropped["unattached"] += 1
            elif len(links := found.setdefault(parent, [])) >= MAX_ATTACHED:
                self.dropped["cap"] += 1
            else:
                links.append((origin, name))
            if here is not None and begins:
                remember(self._origin.flows, flow, here)
        return found

    def _span(self, index: int) -> Span:
        # The fields of an event in the order of EVENT_DTYPE: one call for all of them is fast.
        ts, dur, own_ns, _, _, _, at, length, name, track, step, category, kind, flags = self._rows.events[index].item()
        place, begin = self._places[index], self._origin.unix_ns(ts)
        span = Span(
            trace_id=place.trace,
            span_id=place.span,
            name=_name(name, step, flags),
            kind=Span.SPAN_KIND_INTERNAL,
            start_time_unix_nano=begin,
            # Not the clock's time at its end: the length would be wrong if the clock was set meanwhile.
            end_time_unix_nano=min(begin + max(dur, 0), MAX_UNIX_NS) if kind == _SPAN else begin,
            flags=SAMPLED,
        )
        about: dict[str, Any] = self._arguments(index, at, length, flags)
        if flags & _ERROR:
            span.status.code = Status.STATUS_CODE_ERROR
            span.status.message = about["error.type"] = readable(str(about.pop("error", "")))
        if step >= 0:
            about["stepscope.step"] = step
        if kind == _SPAN and own_ns != dur and not self._chosen.roots[index]:
            about["stepscope.self_ns"] = own_ns
        source = self._rows.sources[int(self._rows.batch[index])]
        if source != "recorder":
            about["stepscope.source"] = source
        if flags & _OPEN:
            about["stepscope.open"] = True
        if flags & _CLIPPED:
            about["stepscope.clipped"] = True
        span.attributes.extend([*attributes(about), self._origin.category(category), *self._origin.track(track)])
        self._attach(span, index, place)
        return span

    def _event(self, index: int) -> Span.Event:
        ts, dur, _, _, number, _, at, length, name, _, step, category, kind, flags = self._rows.events[index].item()
        about = self._arguments(index, at, length, flags)
        if kind == _GAP:
            about |= {"stepscope.gap_ns": dur, "stepscope.lost": number}
        return Span.Event(
            time_unix_nano=self._origin.unix_ns(ts),
            name=_name(name, step, flags),
            attributes=[*attributes(about), self._origin.category(category)],
        )

    def _arguments(self, index: int, at: int, length: int, flags: int) -> dict[str, Any]:
        if flags & _INLINE:
            return {strings.text(at): length}
        if not length:
            return {}
        try:
            return dict(_core.decode_arguments(self._rows.heaps[int(self._rows.batch[index])], at, length))
        except ValueError:
            return {"stepscope.bad_arguments": True}

    def _attach(self, span: Span, index: int, place: SentSpan) -> None:
        """Sets the parent: the nearest ancestor if that is in the same trace, else the step or window. Links an ancestor
        elsewhere."""
        ids, step = self._origin.ids, int(self._chosen.trace_step[index])
        if self._chosen.roots[index]:
            _link(span, SentSpan(ids.trace, ids.window(self._window)), "stepscope.link", "window")
            return
        ancestor = int(self._chosen.ancestor[index])
        above = self._places.get(ancestor) if ancestor >= 0 else self._sent_before(index)
        if above is not None and above.span != place.span:
            if above.trace == place.trace:
                span.parent_span_id = above.span
                return
            _link(span, above, "stepscope.link", "parent")
        span.parent_span_id = ids.window(self._window) if step == RUN_TRACE else ids.step(self._window, step)

    def _sent_before(self, index: int) -> SentSpan | None:
        """The first ancestor that is not among these events, if it was sent."""
        above = index
        for _ in range(MAX_DEPTH):
            above = int(self._chosen.parent[index])
            if above < 0:
                break
            index = above
        if above != UNKNOWN:
            return None
        sent = self._origin.sent.get((self._window, int(self._rows.events["parent"][index])))
        # Not one of these spans, which has the missing one's id if ids were used twice: that would make circles.
        return None if sent is not None and sent.span in self._own else sent


def _name(number: int, step: int, flags: int) -> str:
    """Does what `strings.name_of` does, with fields that were read."""
    return f"{strings.text(number)}#{step}" if flags & _NUMBERED else strings.text(number)


def _link(span: Span, other: SentSpan, key: str, value: str) -> None:
    span.links.add(trace_id=other.trace, span_id=other.span, attributes=attributes({key: value}))


class MetricEncoder:
    """Makes gauges of counters, and a histogram of the durations of steps since the run began, as Prometheus wants it."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._buckets = [0] * (len(STEP_BOUNDS) + 1)
        self._count, self._sum, self._min, self._max = 0, 0.0, 0.0, 0.0
        self._latest = self._sent = 0

    def observe(self, steps: Block) -> None:
        """Counts steps that have ended."""
        for begin, length in zip(steps["ts"].tolist(), steps["dur"].tolist(), strict=True):
            seconds = max(length, 0) / 1e9
            self._buckets[bisect_left(STEP_BOUNDS, seconds)] += 1
            self._min = min(self._min, seconds) if self._count else seconds
            self._max = max(self._max, seconds)
            self._count, self._sum = self._count + 1, self._sum + seconds
            self._latest = max(self._latest, begin + max(length, 0))

    def samples(self, samples: Block) -> Iterator[tuple[metrics.Metric, int]]:
        """Yields samples of counters, each as a gauge with one point that stands for one event."""
        fields = [samples[field].tolist() for field in ("ts", "value", "name", "category", "track")]
        for at, value, name, category, track in zip(*fields, strict=True):
            point = metrics.NumberDataPoint(
                time_unix_nano=self._origin.unix_ns(at),
                as_double=value,
                attributes=[self._origin.category(category), *self._origin.track(track)],
            )
            gauge = metrics.Gauge(data_points=[point])
            yield metrics.Metric(name=readable(strings.text(name)) or "unnamed", gauge=gauge), 1

    def steps(self) -> Iterator[Request]:
        """Yields a request for the histogram of all steps so far, if there are new ones."""
        if self._count == self._sent:
            return
        self._sent = self._count
        now = self._origin.unix_ns(self._latest)
        point = metrics.HistogramDataPoint(
            # Relative to the clock as it is now: the begin must not be later than the end if the clock was set back.
            start_time_unix_nano=max(now - (self._latest - self._origin.run.anchor.monotonic_ns), 0),
            time_unix_nano=now,
            count=self._count,
            sum=self._sum,
            min=self._min,
            max=self._max,
            bucket_counts=self._buckets,
            explicit_bounds=STEP_BOUNDS,
        )
        histogram = metrics.Histogram(
            data_points=[point], aggregation_temporality=metrics.AGGREGATION_TEMPORALITY_CUMULATIVE
        )
        metric = metrics.Metric(name=STEP_DURATION, unit="s", description="Duration of steps.", histogram=histogram)
        yield from self._origin.requests("metrics", [(metric, 0)])


class Conversion:
    """Makes requests of a run's batches. Each event is in a request or counted as dropped when its step is complete."""

    def __init__(self, run: Run, options: OtlpOptions, outcomes: Outcomes) -> None:
        self._run, self._options, self._outcomes = run, options, outcomes
        self._origin = Origin(run, options)
        self._metrics = MetricEncoder(self._origin) if options.metrics else None
        self._filter = EventFilter(options)
        rate = options.spans_per_second
        self._limits = RateLimit(rate), RateLimit(rate) if options.metrics else None
        self._windows: dict[int, WindowBuffer] = {}
        self._metrics_at = run.anchor.monotonic_ns
        self._first: int | None = None
        self._last = 0

    def add(self, batch: EventBatch) -> Iterator[Request]:
        """Takes a batch, and returns requests for the steps that are complete now. They are made as they are sent."""
        buffer = self._window(batch.window)
        rows = buffer.add(batch)
        return iter(()) if rows is None else self._convert(buffer, rows, final=False)

    def close_window(self, window: Window) -> Iterator[Request]:
        """Returns requests for the rest of a window, and for its own span."""
        buffer = self._window(window.index)
        del self._windows[window.index]
        yield from self._convert(buffer, buffer.drain(), final=True)
        steps = {step.number: (step.start_ns, step.end_ns) for step in window.steps}
        about: dict[str, Any] = {
            "stepscope.window.steps": len(window.steps),
            "stepscope.window.complete": window.complete,
            "stepscope.window.diagnostics": list(window.diagnostics),
            "stepscope.window.ledger": msgspec.to_builtins(window.ledger),
        }
        yield from self._end(buffer, window.start_ns, window.end_ns, steps, about)

    def close(self) -> Iterator[Request]:
        """Returns requests for windows that were not closed, and for the run's own span."""
        for index in sorted(self._windows):
            buffer = self._windows.pop(index)
            yield from self._convert(buffer, buffer.drain(), final=True)
            yield from self._end(buffer, buffer.first, buffer.last, {}, {"stepscope.window.complete": False})
        if self._first is None:
            return
        about = {f"stepscope.metadata.{key}": value for key, value in self._run.metadata().items()}
        about |= {"stepscope.ledger": msgspec.to_builtins(self._run.ledger())}
        place = SentSpan(self._origin.ids.trace, self._origin.ids.span)
        span = self._own_span("run", self._run.name, self._first, self._last, place, about)
        yield from self._origin.requests("traces", [(span, 0)])
        if self._metrics is not None:
            yield from self._metrics.steps()

    def _window(self, index: int) -> WindowBuffer:
        if index not in self._windows:
            self._windows[index] = WindowBuffer(index, self._options)
        return self._windows[index]

    def _convert(self, buffer: WindowBuffer, rows: Rows, *, final: bool) -> Iterator[Request]:
        """Selects at once, as later events build on that; makes spans as they are sent."""
        if not len(rows.events):
            return iter(())
        sent = self._origin.sent
        chosen = Selection(
            rows, buffer, self._filter, self._limits, lambda span: (buffer.index, span) in sent, final=final
        )
        buffer.put_back(rows, chosen.orphans)
        buffer.marks += chosen.marks
        encoder = SpanEncoder(self._origin, rows, buffer, chosen)
        for reason, count in (chosen.dropped + encoder.dropped).items():
            self._outcomes.drop(buffer.index, reason, count)
        if self._metrics is not None:
            self._metrics.observe(rows.events[chosen.roots])
        return self._requests(buffer, encoder.spans(), rows.events[chosen.samples])

    def _requests(self, buffer: WindowBuffer, spans: Iterator[tuple[Part, int]], samples: Block) -> Iterator[Request]:
        yield from self._origin.requests("traces", spans, buffer.index)
        if self._metrics is None:
            return
        yield from self._origin.requests("metrics", self._metrics.samples(samples), buffer.index)
        if buffer.last - self._metrics_at >= METRICS_INTERVAL_NS:
            self._metrics_at = buffer.last
            yield from self._metrics.steps()

    def _end(
        self,
        buffer: WindowBuffer,
        start: int,
        end: int,
        steps: Mapping[int, tuple[int, int]],
        about: Mapping[str, Any],
    ) -> Iterator[Request]:
        """Requests for the span of a window, and for spans of those of its steps that have none."""
        self._first = start if self._first is None else min(self._first, start)
        self._last = max(self._last, end)
        ids, window = self._origin.ids, buffer.index
        place = SentSpan(ids.trace, ids.window(window))
        own = self._own_span("window", f"window {window}", start, end, place, about)
        own.parent_span_id = ids.span
        spans: list[tuple[Part, int]] = [(own, buffer.marks)]
        for step, extent in sorted(buffer.unsent_steps.items()):
            root = SentSpan(ids.step_trace(window, step), ids.step(window, step))
            span = self._own_span("step", f"ProfilerStep#{step}", *steps.get(step, extent), root, {})
            _link(span, place, "stepscope.link", "window")
            spans.append((span, 0))
        return self._origin.requests("traces", spans, window)

    def _own_span(self, kind: str, name: str, start: int, end: int, place: SentSpan, about: Mapping[str, Any]) -> Span:
        """A span that stands for no event."""
        begin = self._origin.unix_ns(start)
        return Span(
            trace_id=place.trace,
            span_id=place.span,
            name=readable(name),
            kind=Span.SPAN_KIND_INTERNAL,
            start_time_unix_nano=begin,
            end_time_unix_nano=min(begin + max(end - start, 0), MAX_UNIX_NS),
            attributes=attributes({"stepscope.span": kind, **about}),
            flags=SAMPLED,
        )

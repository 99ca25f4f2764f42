"""From events to spans: whatever a block holds, what is sent is whole."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from stepscope.exporters.network.outcomes import Outcomes
from stepscope.exporters.otlp.encoding import Conversion, Request
from stepscope.exporters.otlp.options import OtlpOptions
from stepscope.exporters.otlp.selection import NONE, UNKNOWN, nearest, parents
from stepscope.exporters.specimens import batch_of, every_kind, run_in, spans, window_of
from stepscope.runtime.accounting.ledger import Ledger, OutputLedger, SourceLedger
from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.record import Block, EventBatch, Flag, Kind, empty_block
from stepscope.runtime.export.run import Run
from tests.support.blocks import span_block
from tests.support.receiver import attributes_of

RUN = run_in(Path("/"))
BASE = RUN.anchor.monotonic_ns
ALL = OtlpOptions(spans_per_second=None, leave_out=())


class Converted:
    """Everything that a run of batches becomes."""

    def __init__(
        self, batches: list[EventBatch], options: OtlpOptions = ALL, run: Run = RUN, *, close: bool = True
    ) -> None:
        self.outcomes = Outcomes()
        self.offered: Counter[int] = Counter()
        self.carried: Counter[int] = Counter()
        self.dropped: dict[int, Counter[str]] = {}
        self.spans: list[Span] = []
        self.metrics: list[Metric] = []
        self.requests: list[Request] = []
        conversion = Conversion(run, options, self.outcomes)
        for batch in batches:
            self.offered[batch.window] += len(batch)
            self._take(conversion.add(batch))
        for window in sorted(self.offered) if close else ():
            self._take(conversion.close_window(window_of(window, batch_of(empty_block(), window=window))))
        self._take(conversion.close())
        for result in self.outcomes.drain():
            self.dropped.setdefault(result.window, Counter()).update(result.dropped)

    def _take(self, requests: Any) -> None:
        for request in requests:
            self.requests.append(request)
            self.carried[request.window] += request.events
            if request.signal == "traces":
                (resource,) = ExportTraceServiceRequest.FromString(request.encode()).resource_spans
                assert len(resource.scope_spans[0].spans) == len(request.parts)
                self.spans += resource.scope_spans[0].spans
            else:
                (about,) = ExportMetricsServiceRequest.FromString(request.encode()).resource_metrics
                self.metrics += about.scope_metrics[0].metrics

    def check(self) -> None:
        """Fails unless every span is there once, below one of its trace, and every event is accounted for."""
        by_id = {(span.trace_id, span.span_id): span for span in self.spans}
        assert len(by_id) == len(self.spans)
        assert len({span.span_id for span in self.spans}) == len(self.spans)
        for span in self.spans:
            assert len(span.trace_id) == 16 and any(span.trace_id)
            assert len(span.span_id) == 8 and any(span.span_id)
            assert span.start_time_unix_nano <= span.end_time_unix_nano
            attributes_of(span.attributes)
            assert len(span.events) <= 128 and len(span.links) <= 130
            seen = 0
            at = span
            while at.parent_span_id:  # to the root, without a circle
                at = by_id[at.trace_id, at.parent_span_id]
                seen += 1
                assert seen <= len(self.spans)
        for window, offered in self.offered.items():
            dropped = self.dropped.get(window, Counter())
            assert min(dropped.values(), default=0) >= 0
            assert self.carried[window] + dropped.total() == offered, (window, dropped)

    def named(self, name: str) -> Span:
        (span,) = [span for span in self.spans if span.name == name]
        return span

    def parent_of(self, name: str) -> str:
        """Name of a span's parent, which is in the same trace."""
        span = self.named(name)
        (parent,) = [p for p in self.spans if (p.trace_id, p.span_id) == (span.trace_id, span.parent_span_id)]
        return parent.name


NAMES = [strings.intern(name) for name in ("a", "b", "", "ProfilerStep", "é \0")]
CATEGORIES = [strings.category(name) for name in ("user_annotation", "cpu_op", "python_function")]
TRACKS = [0, tracks.new(tracks.TrackKind.THREAD, 1, 2, "t"), tracks.new(tracks.TrackKind.STREAM, 0, 7, "s"), 1 << 31]
times = st.integers(BASE - 1000, BASE + 10_000) | st.sampled_from([0, -5, BASE + (1 << 40), -(1 << 62), 1 << 62])
events = st.tuples(
    times,
    st.integers(-5, 3000) | st.sampled_from([1 << 60, -(1 << 62)]),
    st.integers(0, 6) | st.just((1 << 64) - 1),
    st.integers(0, 6) | st.just((1 << 64) - 1),
    st.sampled_from(NAMES),
    st.sampled_from(TRACKS),
    st.integers(-1, 3) | st.sampled_from([-(1 << 31), (1 << 31) - 1]),
    st.sampled_from(CATEGORIES),
    st.sampled_from([1, 1, 1, *range(14), 255]),
    st.integers(0, 255),
    st.integers(0, 40),
    st.integers(0, 40),
)
FIELDS = ("ts", "dur", "id", "parent", "name", "track", "step", "category", "kind", "flags", "args_at", "args_len")


def block_of(rows: list[tuple[int, ...]]) -> Block:
    block = empty_block(len(rows))
    for index, row in enumerate(rows):
        for field, value in zip(FIELDS, row, strict=True):
            block[field][index] = value
    return block


def any_batch(rows: list[tuple[int, ...]], window: int, heap: bytes, source: str) -> EventBatch:
    return batch_of(block_of(rows), heap, window=window, source=source)


batches = st.lists(
    st.builds(
        any_batch,
        st.lists(events, max_size=12),
        st.integers(0, 1),
        st.binary(max_size=64),
        st.sampled_from(["recorder", "torch"]),
    ),
    max_size=5,
)
settings_of = st.builds(
    OtlpOptions,
    spans_per_second=st.none() | st.sampled_from([1.0, 5.0, 0.1]),
    leave_out=st.sampled_from([(), ("cpu_op",)]),
    names=st.none() | st.sampled_from([("a*",), ("Prof*",)]),
    min_duration=st.sampled_from([0.0, 1e-6]),
    hold_events=st.sampled_from([1, 5, 1000]),
    metrics=st.booleans(),
    batch_spans=st.sampled_from([1, 3, 512]),
)


_ALL, _FAR, _AT = (1 << 64) - 1, (1 << 31) - 1, 5_968_113_708_444
_TWICE: list[tuple[int, ...]] = [
    (_AT, 0, 0, 0, 1029, 0, 0, 2, 1, 0, 0, 0),
    (_AT, 0, _ALL, _ALL, 1029, 0, 0, 2, 0, 0, 0, 0),
    (_AT, 0, _ALL, _ALL, 1029, 0, 0, 2, 0, 0, 0, 0),
    (_AT, 0, 0, 0, 1029, 0, 0, 2, 1, 0, 0, 0),
    (_AT, 0, 1, _ALL, 1029, 0, _FAR, 2, 2, 0, 0, 0),
    (_AT, 0, _ALL, 1, 1029, 0, _FAR, 2, 2, 0, 0, 0),
]
"""One id of several spans, which are each other's parents."""


@settings(max_examples=150)
@example(
    [any_batch(_TWICE, 0, b"", "recorder")], OtlpOptions(spans_per_second=None, leave_out=(), hold_events=1), False
)
@given(batches, settings_of, st.booleans())
def test_any_block_becomes_a_forest(given_batches: list[EventBatch], options: OtlpOptions, close: bool) -> None:
    """Parents are there, ids are unique, times are in order, accounts balance; also of nonsense."""
    Converted(given_batches, options, close=close).check()


@settings(max_examples=20)
@given(batches)
def test_ids_are_the_same_again_and_other_elsewhere(given_batches: list[EventBatch]) -> None:
    """So what is sent twice is stored once, and ranks do not collide."""
    one, again = Converted(given_batches), Converted(given_batches)
    assert [request.encode() for request in one.requests] == [request.encode() for request in again.requests]
    other = Converted(given_batches, run=msgspec.structs.replace(RUN, rank=1))
    assert not {span.span_id for span in one.spans} & {span.span_id for span in other.spans}
    assert not {span.trace_id for span in one.spans} & {span.trace_id for span in other.spans}


def test_every_kind_is_accounted_for() -> None:
    """All kinds, flags and arguments that there are."""
    converted = Converted([every_kind()])
    converted.check()
    found = attributes_of(converted.named("kind SPAN").attributes)
    assert found["int"] == -(1 << 63) and found["unsigned"] == str((1 << 64) - 1)
    assert found["true"] is True and "nothing" not in found and found["unnamed"] == "an empty key"
    assert found["mapping"] == '{"key":{"nested":"value"}}'
    assert converted.named("flag ERROR").status.code == Status.STATUS_CODE_ERROR


def tree(*rows: tuple[str, int, int, int, int, int], source: str = "recorder", window: int = 0) -> EventBatch:
    """Spans of (name, begin, end, id, parent, step), in us; those of steps are named so."""
    block = spans([row[0].partition("#")[0] for row in rows])
    for place, (name, begin, end, number, parent, step) in enumerate(rows):
        block["ts"][place], block["dur"][place] = BASE + begin * 1000, (end - begin) * 1000
        block["id"][place], block["parent"][place], block["step"][place] = number, parent, step
        if name.startswith("ProfilerStep"):
            block["flags"][place] = int(Flag.NUMBERED)
    return batch_of(block, source=source, window=window)


def steps(*numbers: int) -> EventBatch:
    return tree(*((f"ProfilerStep#{n}", 100 * n, 100 * n + 100, 0, 0, n) for n in numbers), source="steps")


def test_children_find_parents_that_end_later() -> None:
    """A child comes before its parent, and in another batch."""
    converted = Converted([tree(("inner", 10, 20, 2, 1, 0)), tree(("outer", 5, 30, 1, 0, 0)), steps(0), steps(1)])
    assert converted.parent_of("inner") == "outer"
    assert converted.parent_of("outer") == "ProfilerStep#0"
    assert converted.named("inner").trace_id != converted.named("ProfilerStep#1").trace_id


def test_steps_are_sent_when_they_are_complete() -> None:
    """Not before what was recorded with their end is there, and not much later."""
    outcomes = Outcomes()
    conversion = Conversion(RUN, ALL, outcomes)
    assert not list(conversion.add(tree(("early", 10, 20, 1, 0, 0))))
    assert not list(conversion.add(steps(0)))
    assert not list(conversion.add(tree(("late", 30, 40, 2, 0, 0), ("next", 110, 120, 3, 0, 1))))
    (request,) = conversion.add(steps(1))
    (resource,) = ExportTraceServiceRequest.FromString(request.encode()).resource_spans
    assert {span.name for span in resource.scope_spans[0].spans} == {"early", "late", "ProfilerStep#0"}


def test_spans_that_contain_steps_are_in_the_trace_of_the_run() -> None:
    """It would be a child that is longer than its step; what is in the steps hangs on these, linked to it."""
    converted = Converted([
        steps(0, 1, 2),
        tree(("inside", 110, 120, 2, 1, 1), ("astride", 150, 250, 3, 1, 1)),
        steps(3),
        tree(("phase", 50, 340, 5, 1, 0), ("epoch", 10, 350, 1, 0, 0)),
    ])  # fmt: skip
    converted.check()
    assert converted.parent_of("epoch") == "window 0"
    assert converted.parent_of("phase") == "epoch"
    assert converted.parent_of("window 0") == RUN.name
    assert converted.parent_of("inside") == "ProfilerStep#1"
    assert converted.parent_of("astride") == "ProfilerStep#1"
    (link,) = converted.named("ProfilerStep#1").links
    assert link.span_id == converted.named("window 0").span_id


def test_filtered_parents_are_passed_over() -> None:
    """The nearest ancestor that is sent is the parent."""
    batch = tree(("grandparent", 0, 50, 1, 0, 0), ("left out", 5, 40, 2, 1, 0), ("child", 10, 20, 3, 2, 0))
    converted = Converted([batch, steps(0)], OtlpOptions(spans_per_second=None, names=("grand*", "child")))
    converted.check()
    assert converted.parent_of("child") == "grandparent"
    assert converted.dropped[0] == {"filter": 1}


def test_the_rate_keeps_the_longest_and_the_steps() -> None:
    """The spans that are sent hang together, and the others are counted."""
    rows = [(f"op {n}", n, n + 1 + n % 7, n + 1, 0, 0) for n in range(90)]
    converted = Converted([tree(("outer", 0, 99, 200, 0, 0), *rows), steps(0)], OtlpOptions(spans_per_second=16.0))
    converted.check()
    sent = {span.name: span for span in converted.spans if "stepscope.span" not in attributes_of(span.attributes)}
    assert len(sent) == 16 and {"ProfilerStep#0", "outer"} < set(sent)
    lengths = [s.end_time_unix_nano - s.start_time_unix_nano for name, s in sent.items() if name.startswith("op")]
    assert sorted(set(lengths)) == [6000, 7000] and len(lengths) == 14
    assert converted.dropped[0] == {"rate": 92 - 16}


def test_flows_are_links_from_the_later_span_to_the_earlier() -> None:
    """Backward operators link to the forward ones that made them, in whatever order they come, also across steps."""
    batch = tree(("forward", 10, 20, 1, 0, 0), ("backward", 110, 120, 2, 0, 1), ("alone", 130, 140, 3, 0, 1))
    flows = empty_block(3)
    flows["kind"] = [Kind.FLOW_END, Kind.FLOW_START, Kind.FLOW_END]
    flows["parent"], flows["id"], flows["step"] = [2, 1, 3], [7, 7, 8], [1, 0, 1]
    flows["ts"], flows["name"] = BASE + 110_000, strings.intern("fwdbwd")
    converted = Converted([batch, batch_of(flows, source="torch"), steps(0), steps(1)])
    converted.check()
    (link,) = converted.named("backward").links
    assert (link.trace_id, link.span_id) == (converted.named("forward").trace_id, converted.named("forward").span_id)
    assert attributes_of(link.attributes) == {"stepscope.flow": "fwdbwd"}
    assert converted.dropped[0] == {"unattached": 1}


def test_instants_are_events_of_the_span_around_them() -> None:
    """Or of their step; those of no step are spans without duration; of very many the first are sent."""
    batch = tree(
        ("work", 10, 20, 1, 0, 0), *((f"i{n}", 11, 11, 0, 1, 0) for n in range(200)), ("loose", 30, 30, 0, 0, 0)
    )
    block = batch.events.copy()
    block["kind"][1:] = int(Kind.INSTANT)
    outside = tree(("outside", 50, 50, 0, 0, -1)).events.copy()
    outside["kind"] = int(Kind.INSTANT)
    converted = Converted([batch_of(block), batch_of(outside), steps(0)])
    converted.check()
    assert [event.name for event in converted.named("work").events] == [f"i{n}" for n in range(128)]
    assert [event.name for event in converted.named("ProfilerStep#0").events] == ["loose"]
    assert converted.parent_of("outside") == "window 0"
    assert converted.dropped[0] == {"cap": 72}


def test_times_are_exact() -> None:
    """Unix time by the run's anchor, to the nanosecond."""
    block = spans(["exact"], start_ns=BASE + 123_456_789)
    block["dur"] = 987_654_321
    span = Converted([batch_of(block)]).named("exact")
    assert span.start_time_unix_nano == RUN.anchor.wall_ns + 123_456_789
    assert span.end_time_unix_nano == RUN.anchor.wall_ns + 123_456_789 + 987_654_321


def test_counters_are_gauges_and_steps_a_histogram() -> None:
    """Each sample with its own time; the histogram counts all steps of the run."""
    block = spans(["loss"] * 4)
    block["kind"], block["ts"] = int(Kind.COUNTER), BASE + np.arange(4) * 1000
    block["value"] = [1.0, 0.5, float("nan"), 0.25]
    converted = Converted([batch_of(block), steps(0, 1, 2)])
    converted.check()
    (loss,) = [metric for metric in converted.metrics if metric.name == "loss"]
    points = [(point.time_unix_nano - RUN.anchor.wall_ns, repr(point.as_double)) for point in loss.gauge.data_points]
    assert points == [(0, "1.0"), (1000, "0.5"), (2000, "nan"), (3000, "0.25")]
    (histogram,) = [metric.histogram for metric in converted.metrics if metric.name == "stepscope.step.duration"]
    (point,) = histogram.data_points
    assert (point.count, round(point.sum, 9), sum(point.bucket_counts)) == (3, 0.0003, 3)
    assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
    assert point.bucket_counts[0] == 3  # up to 0.1 ms, which is part of its bucket


def test_counters_have_a_rate_too() -> None:
    """Some are left out at equal distances, and the latest is sent."""
    block = spans(["loss"] * 100)
    block["kind"], block["ts"], block["value"] = int(Kind.COUNTER), BASE + np.arange(100), np.arange(100)
    converted = Converted([batch_of(block)], OtlpOptions(spans_per_second=10.0))
    converted.check()
    (loss,) = [metric for metric in converted.metrics if metric.name == "loss"]
    assert [point.as_double for point in loss.gauge.data_points] == [9, 19, 29, 39, 49, 59, 69, 79, 89, 99]
    assert converted.dropped[0] == {"rate": 90}


def test_ledgers_are_sent_whole() -> None:
    """Of a window and of the run, as JSON: sources, outputs with what was offered and is in flight, and what was cut."""
    ledger = Ledger({"recorder": SourceLedger(9, 5, {"overflow": 1}, 2, 1)}, {"x": OutputLedger(5, 3, {"queue": 1}, 1)})
    block = batch_of(spans(["one"]))
    converted = Converted([block], run=msgspec.structs.replace(RUN, ledger=lambda: ledger))
    own = [attributes_of(span.attributes) for span in converted.spans if "stepscope.span" in str(span.attributes)]
    (window,) = [about["stepscope.window.ledger"] for about in own if "stepscope.window.ledger" in about]
    (run,) = [about["stepscope.ledger"] for about in own if "stepscope.ledger" in about]
    assert msgspec.json.decode(run, type=Ledger) == ledger
    assert msgspec.json.decode(window, type=Ledger) == window_of(0, batch_of(empty_block())).ledger


def test_requests_are_bounded() -> None:
    """In spans and in bytes, but for a span that is larger alone."""
    block = spans([f"{n} " + "x" * 900 for n in range(100)])
    few = Converted([batch_of(block)], OtlpOptions(spans_per_second=None, batch_spans=7))
    assert max(len(request.parts) for request in few.requests) == 7
    small = Converted([batch_of(spans([f"{n} " + "y" * 900 for n in range(100)]))], OtlpOptions(batch_bytes=8000))
    small.check()
    assert max(len(request.encode()) for request in small.requests) <= 8000 + 600  # and the resource


def test_a_loop_without_steps_is_sent_as_it_goes() -> None:
    """After as many events, or as much time, as the settings say."""
    conversion = Conversion(RUN, OtlpOptions(hold_seconds=1.0), Outcomes())
    assert not list(conversion.add(tree(("one", 0, 10, 1, 0, 0))))
    assert list(conversion.add(tree(("two", 1_100_000, 1_100_010, 2, 0, 0))))
    conversion = Conversion(RUN, OtlpOptions(hold_events=2), Outcomes())
    assert list(conversion.add(tree(*((f"{n}", n, n + 1, n + 1, 0, 0) for n in range(3)))))


@given(st.lists(st.tuples(st.integers(-2, 14), st.booleans(), st.booleans()), min_size=1, max_size=15))
def test_the_nearest_sent_ancestor_is_found(nodes: list[tuple[int, bool, bool]]) -> None:
    """For any parents without circles."""
    parent = np.array([up if up < index else UNKNOWN for index, (up, _, _) in enumerate(nodes)], np.int64)
    sent = np.array([flag for _, flag, _ in nodes])
    asking = np.array([flag for _, _, flag in nodes]) | sent

    def walk(index: int) -> int:
        at = int(parent[index])
        while at >= 0 and not sent[at]:
            at = int(parent[at])
        return at

    found = nearest(parent, sent, asking)
    assert [found[index] for index in np.flatnonzero(asking)] == [
        walk(index) for index in np.flatnonzero(asking).tolist()
    ]


def test_parents_of_parts_and_strangers() -> None:
    """Of a span in parts the one that began last before the child counts; who is its own parent has none."""
    block = span_block((0, 10), (20, 30), (22, 25), (5, 6), (7, 8), (9, 9))
    block["id"] = [1, 1, 2, 3, 4, 5]
    block["parent"] = [0, 0, 1, 1, 4, 77]
    assert parents(block, np.ones(6, np.bool_)).tolist() == [NONE, NONE, 1, 0, NONE, UNKNOWN]

"""Metrics of OTLP: counters as gauges, durations of steps as a histogram."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from stepscope.exporters.otlp.ancestors import Indices
from stepscope.exporters.otlp.held import Rows
from stepscope.exporters.otlp.options import OtlpOptions
from stepscope.exporters.otlp.request import Request
from stepscope.exporters.otlp.spans import unix_ns
from stepscope.exporters.otlp.values import attributes, clean
from stepscope.exporters.otlp.whereabouts import Whereabouts
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Block
from stepscope.runtime.export.run import Run

STEP_DURATION = "stepscope.step.duration"

BOUNDS = tuple(
    scale * step for scale in (0.0001, 0.001, 0.01, 0.1, 1.0, 10.0) for step in (1, 2.5, 5)
)  # fmt: skip
"""Upper bounds of the histogram's buckets, in seconds: from 0.1 ms to 50 s."""


class MetricMaker:
    """Makes requests of counters and steps. The histogram counts from the begin of the run, as Prometheus wants it."""

    def __init__(self, run: Run, resource: Resource, scope: InstrumentationScope, options: OtlpOptions) -> None:
        self._run = run
        self._resource, self._scope = resource, scope
        self._most = options.batch_spans
        self._whereabouts = Whereabouts(run.pid)
        self._buckets = [0] * (len(BOUNDS) + 1)
        self._count, self._sum, self._min, self._max = 0, 0.0, 0.0, 0.0
        self._latest = self._told = 0

    def observe(self, steps: Block) -> None:
        """Counts steps that have ended."""
        for begin, length in zip(steps["ts"].tolist(), steps["dur"].tolist(), strict=True):
            seconds = max(length, 0) / 1e9
            self._buckets[bisect_left(BOUNDS, seconds)] += 1
            self._min = min(self._min, seconds) if self._count else seconds
            self._max = max(self._max, seconds)
            self._count, self._sum = self._count + 1, self._sum + seconds
            self._latest = max(self._latest, begin + max(length, 0))

    def samples(self, rows: Rows, window: int, chosen: Indices) -> Iterator[Request]:
        """Requests for counters' samples of a window, as points of gauges."""
        for first in range(0, len(chosen), self._most):
            part = chosen[first : first + self._most]
            metrics: dict[tuple[int, int], Metric] = {}
            for index in part.tolist():
                event = rows.events[index]
                name, category = int(event["name"]), int(event["category"])
                if (name, category) not in metrics:
                    metrics[name, category] = Metric(name=clean(strings.text(name)) or "unnamed", gauge=Gauge())
                point = NumberDataPoint(
                    time_unix_nano=unix_ns(self._run, int(event["ts"])),
                    as_double=float(event["value"]),
                    attributes=[
                        *attributes({"stepscope.category": strings.text(category)}),
                        *self._whereabouts.of(int(event["track"])),
                    ],
                )
                metrics[name, category].gauge.data_points.append(point)
            yield self._request(list(metrics.values()), window, (1,) * len(part))

    def steps(self) -> Iterator[Request]:
        """A request for the histogram of all steps so far, if there are new ones."""
        if self._count == self._told:
            return
        self._told = self._count
        now = unix_ns(self._run, self._latest)
        point = HistogramDataPoint(
            # By the clock as it is now: the begin must not be later than the end after it was set back.
            start_time_unix_nano=max(now - (self._latest - self._run.anchor.monotonic_ns), 0),
            time_unix_nano=now,
            count=self._count,
            sum=self._sum,
            min=self._min,
            max=self._max,
            bucket_counts=self._buckets,
            explicit_bounds=BOUNDS,
        )
        histogram = Histogram(
            data_points=[point], aggregation_temporality=AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
        )
        metric = Metric(name=STEP_DURATION, unit="s", description="Duration of steps.", histogram=histogram)
        yield self._request([metric], 0, (0,))

    def _request(self, metrics: list[Metric], window: int, weights: tuple[int, ...]) -> Request:
        scope = ScopeMetrics(scope=self._scope, metrics=metrics)
        body = ExportMetricsServiceRequest(
            resource_metrics=[ResourceMetrics(resource=self._resource, scope_metrics=[scope])]
        )
        return Request("metrics", body.SerializeToString(), window, weights)

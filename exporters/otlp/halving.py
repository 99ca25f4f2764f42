"""Halves of a request, for receivers that find it too large."""

from __future__ import annotations

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from stepscope.exporters.otlp.request import Request


def halves(request: Request) -> tuple[Request, Request]:
    """Two requests that hold together what this one of two parts or more does, in the same order."""
    middle = request.parts // 2
    keep = _keep_spans if request.signal == "traces" else _keep_points
    return (
        Request(request.signal, keep(request.body, 0, middle), request.window, request.weights[:middle]),
        Request(request.signal, keep(request.body, middle, request.parts), request.window, request.weights[middle:]),
    )


def _keep_spans(body: bytes, first: int, end: int) -> bytes:
    message = ExportTraceServiceRequest.FromString(body)
    at = 0
    for resource in message.resource_spans:
        for scope in resource.scope_spans:
            count = len(scope.spans)
            del scope.spans[max(end - at, 0) :]
            del scope.spans[: max(first - at, 0)]
            at += count
    return message.SerializeToString()


def _keep_points(body: bytes, first: int, end: int) -> bytes:
    message = ExportMetricsServiceRequest.FromString(body)
    at = 0
    for resource in message.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                points = metric.gauge.data_points if metric.HasField("gauge") else metric.histogram.data_points
                count = len(points)
                del points[max(end - at, 0) :]
                del points[: max(first - at, 0)]
                at += count
            kept = [metric for metric in scope.metrics if metric.gauge.data_points or metric.histogram.data_points]
            del scope.metrics[:]
            scope.metrics.extend(kept)
    return message.SerializeToString()

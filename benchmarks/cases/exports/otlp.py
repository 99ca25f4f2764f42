"""The cost of a span that is sent by OTLP: from its begin to the receiver's answer, on all threads of the process."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from benchmarks.cases.exports.sink_server import sink
from benchmarks.cases.tools.session import session
from benchmarks.cases.tools.span_load import Span, emit
from benchmarks.harness.peers import peer
from benchmarks.harness.row import Contender, Round, Row, Sample, Tool
from benchmarks.harness.scale import Scale

SHARE = 25
"""Spans of a round are the events of the scale divided by this: tools take tens of microseconds for each."""


def _cost(span: Span, count: int, finish: Callable[[], object]) -> float:
    """Microseconds of processor time for each span."""
    start = time.process_time_ns()
    emit(span, count)
    finish()
    return (time.process_time_ns() - start) / count / 1000


@contextmanager
def _stepscope(scale: Scale) -> Generator[Round]:
    import stepscope

    count = max(scale.events // SHARE, 50)
    with sink() as url:

        def once() -> Sample:
            exporter = stepscope.exporters.OtlpExporter(
                url, options=stepscope.exporters.OtlpOptions(spans_per_second=None, metrics=False, batch_spans=512)
            )
            options = stepscope.Options(journal=False, close_timeout=120.0)
            with session(exporters=[exporter], options=options) as profiler:
                cost = _cost(stepscope.span, count, profiler.close)
                statistics = profiler.statistics().pipeline
                assert statistics is not None
                lost = sum(sum(output.ledger.dropped.values()) for output in statistics.exporters)
            return Sample(cost, facts={"lost": lost})

        yield once


@contextmanager
def _opentelemetry(scale: Scale) -> Generator[Round]:
    sdk, export = peer("opentelemetry.sdk.trace"), peer("opentelemetry.sdk.trace.export")
    otlp = peer("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    count = max(scale.events // SHARE, 50)
    with sink() as url:

        def once() -> Sample:
            provider = sdk.TracerProvider()
            exporter = otlp.OTLPSpanExporter(f"{url}/v1/traces", compression=otlp.Compression.Gzip)
            # A queue that holds all: its default drops what is faster than the exporter.
            provider.add_span_processor(export.BatchSpanProcessor(exporter, max_queue_size=count + 1))
            return Sample(_cost(provider.get_tracer("x").start_as_current_span, count, provider.shutdown))

        yield once


ROWS = (
    Row(
        key="otlp.span",
        what="a span recorded and sent by OTLP over HTTP, gzip, to a receiver that does nothing: processor time",
        unit="us",
        heavy=True,
        contenders=(
            Contender(Tool.STEPSCOPE, "OtlpExporter", _stepscope),
            Contender(Tool.OPENTELEMETRY, "OTLPSpanExporter", _opentelemetry),
        ),
    ),
)

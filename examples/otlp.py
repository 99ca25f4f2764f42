"""Sends a run to a receiver of OTLP: `python otlp.py http://localhost:4318`, or to where OTEL_EXPORTER_OTLP_ENDPOINT says."""

from __future__ import annotations

import sys
import time

import stepscope as sc


def main() -> None:
    options = sc.exporters.OtlpOptions(service_name="example", spans_per_second=500.0, leave_out=("cpu_op",))
    exporter = sc.exporters.OtlpExporter(sys.argv[1] if len(sys.argv) > 1 else None, options=options)
    with sc.trace(exporters=[exporter], output_dir="run") as profiler:
        for step in range(5):
            with sc.span("load", rows=32):
                time.sleep(0.002)
            with sc.span("train"), sc.span("forward", layer=step):
                time.sleep(0.003)
            sc.counter("loss", 1 / (step + 1))
            profiler.step()
    print(profiler.report())  # sent and lost events, and the reasons
    try:
        profiler.raise_errors()
    except ExceptionGroup as errors:
        why = errors.exceptions[0].__cause__
        sys.exit(
            f"{why}. Is a receiver of OTLP over HTTP running there? An OpenTelemetry Collector, Jaeger or Phoenix is one."
        )


if __name__ == "__main__":
    main()

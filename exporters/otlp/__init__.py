"""OTLP over HTTP: what was recorded as traces and metrics of OpenTelemetry.

Read first: `exporter` with `options`, then `selection`, `encoding` and `sender`.
"""

"""OTLP over HTTP: what was recorded as traces and metrics of OpenTelemetry."""

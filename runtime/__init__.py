"""The tracing runtime: recorder, windows, fanout. Imports neither backends nor exporters."""

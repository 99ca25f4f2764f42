"""The suites that every backend and every exporter passes."""

"""Drives the real programs that read traces, headless and without a network."""

"""Kineto mode: torch's own engine records, and hands everything over when a window ends. Begin with `mode.py`."""

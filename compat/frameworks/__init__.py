"""Callbacks for training frameworks. `loop.py` is the part that all share: it opens, steps and closes a profiler."""

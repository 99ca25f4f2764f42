"""The vocabulary: what an event is, and the process-wide tables of names and tracks. Imports nothing else of the runtime.

Read first: `record`, then `strings`, `tracks` and `clock`.
"""

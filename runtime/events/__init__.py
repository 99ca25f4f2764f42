"""The vocabulary: what an event is, and the process-wide tables of names and tracks.

Read first: `record`, then `strings`, `tracks` and `clock`.
"""

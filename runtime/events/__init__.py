"""The format of events, and the process-wide tables of names and tracks.

Read first: `record`, then `strings`, `tracks` and `clock`.
"""

"""Recovery: what a killed process left in its journal and its rings, brought together again; and the removal of what is left.

Read first: `recover` with `target`, then `unsaved_events` and `session_files`, then `sweep`.
"""

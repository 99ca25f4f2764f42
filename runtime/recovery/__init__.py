"""Recovery: completes the journal of a killed process from its rings. Sweep: removes the sessions of killed processes.

Read first: `recover` with `journals`, then `unsaved_events` and `session_files`, then `sweep`.
"""

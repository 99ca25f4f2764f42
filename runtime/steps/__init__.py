"""Stepping threads: the begin and end of windows, armed windows, and saving the last steps.

Read first: `step_controller`, then `arming` with `armed_windows`, then `saving`.
"""

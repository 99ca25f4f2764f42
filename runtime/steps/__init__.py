"""The side of the threads that step: which step begins a window, windows that are armed, and saving the last steps.

Read first: `step_controller`, then `arming` with `armed_windows`, then `saving`.
"""

"""The side of the program's threads: the one recorder, steps, windows that are armed, processes that join.

Read first: `recorder`, then `step_controller` and `arming`, then `joined_processes`.
"""

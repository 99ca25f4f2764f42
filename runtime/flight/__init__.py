"""The flight recorder: retains the last steps at all times, and saves them when a trigger fires.

Read first: `recorder`, then `retention`, `late_windows` and `trigger_watch`.
"""

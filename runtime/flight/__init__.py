"""The flight recorder: retains the last steps at all times, and saves them when a trigger fires.

Read first: `settings`, then `recorder` with `late_windows`, then `retention`, then `trigger_watch`.
"""

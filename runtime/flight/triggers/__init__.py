"""The triggers of the flight recorder, a file each.

Read first: `trigger` (what one is), then `slow_step`.
"""

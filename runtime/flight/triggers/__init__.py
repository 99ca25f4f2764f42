"""The triggers of the flight recorder, a file each.

Read first: `trigger` (what one is), then `slow_step`, then `trigger_thread` (triggers of the program).
"""

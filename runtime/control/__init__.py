"""Control: requests for windows while the program runs, by a call, a file, a signal or another process.

Read first: `controller`, then `requests`, `entry_points` and `agreement`.
"""

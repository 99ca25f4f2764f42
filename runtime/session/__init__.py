"""The session directory, where the processes that take part keep their rings, and what it says of processes and their job.

Read first: `directory`, then `note`, then `job` with `launch`.
"""

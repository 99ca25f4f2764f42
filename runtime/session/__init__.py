"""The session directory, where the processes that take part keep their rings, and what it says of processes.

Read first: `directory`, then `note`.
"""

"""Threads that run an event loop, and how the loops last and end.

Read first: `loop_thread`, then `lasting_loop` and `condition`.
"""

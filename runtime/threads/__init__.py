"""Threads of the runtime, with and without an event loop, and their locks and conditions.

Read first: `loop_thread`, then `background_call`, `one_shot` and `condition`.
"""

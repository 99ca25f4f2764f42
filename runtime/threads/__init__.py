"""Threads of the runtime with and without an event loop, and what they wait for.

Read first: `loop_thread`, then `background_call`, `one_shot` and `condition`.
"""

"""Threads of the runtime, what they wait for, and the signals that end the process.

Read first: `native_threads` and `locks`, then `background_call` and `one_shot`, then `signals`.
"""

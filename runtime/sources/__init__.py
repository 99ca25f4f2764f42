"""Backends as the runtime sees them: one source each, the sink that it delivers to, and its thread.

Read first: `source`, then `backend_worker`, `sink` and `thread_bound`.
"""

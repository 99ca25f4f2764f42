"""The runtime's side of backends: a source, a sink and a thread for each.

Read first: `source`, then `backend_worker`, `sink` and `thread_bound`.
"""

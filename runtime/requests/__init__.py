"""A request for a window: what it may ask for, which steps it gets, and how it ends.

Read first: `window_request`, then `placement`, `armed_window` and `armed`; `armable` is who takes it.
"""

"""Requests for windows: their fields, their steps, and their ends.

Read first: `window_request`, then `placement`, `armed_window` and `armed`.
"""

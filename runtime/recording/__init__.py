"""The one recorder of the process: it drains the rings, frees their slots, and takes in processes that join.

Read first: `recorder`, then `late_release`, then `joined_processes`.
"""

"""The recorder of the process: drains the rings, frees their slots, and handles joined processes.

Read first: `recorder`, then `late_release`, then `joined_processes`.
"""

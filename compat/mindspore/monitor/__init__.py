"""The dynamic monitor, which records the steps that a file requests while training runs.

Read `dynamic_monitor.py` first, then `dynamic_args.py` (the file's fields) and `window_recorder.py`.
"""

"""`mxnet.profiler` on stepscope's runtime; users import `stepscope.mxnet`.

Read `functions.py` first, then `recording.py` (the profiler behind the functions), `objects` (tasks, frames, counters and so
on), `statistics.py` and `tables.py` (what `dumps` returns), `memory.py` and `remote.py`.
"""

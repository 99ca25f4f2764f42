"""`mxnet.profiler` on stepscope's runtime; users import `stepscope.mxnet`.

Read `functions.py` first, then `recording` (the profiler behind the functions), `objects` (tasks, frames, counters and so
on), `statistics` (the tables of `dumps`), `memory` and `remote`.
"""

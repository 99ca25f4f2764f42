"""The tables of `dumps`.

`statistics.py` adds up events by the runtime's aggregates, `series.py` has counters and frames, `tables.py` rows and formats.
"""

"""The tables of `dumps`: `statistics.py` adds up events, `series.py` those of one name, `tables.py` has rows and their formats."""

"""The tables of `dumps`: `statistics.py` adds up events, `series.py` has one name, `tables.py` rows and their formats."""

"""The tables of `dumps`: `statistics.py` adds up events, `row.py` has a line of a table, `tables.py` formats it."""

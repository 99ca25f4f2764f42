"""Tables of one rank's events. `rank_summary.py` gathers all of them in one pass; each other file has one kind of table."""

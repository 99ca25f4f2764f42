"""Consumers of events, one format per file. `base.py` is the contract."""

"""Producers of events, one source per file. `base.py` is the contract."""

"""The files that an analysis writes, by subject. `base.py` has the protocol of a product."""

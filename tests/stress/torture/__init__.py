"""Breaks the runtime in every way that is promised to be survived, and counts what was lost: `make torture`."""

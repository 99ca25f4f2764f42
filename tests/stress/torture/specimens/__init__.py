"""Faults that try the runner itself: each does what no fault should."""

"""Products of a window, one per file."""

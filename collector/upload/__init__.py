"""Copies of streams in an object store: each segment is an object, put when it is closed."""

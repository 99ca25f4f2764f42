"""The rows, by subject."""

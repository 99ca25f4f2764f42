"""Streams in an object store: uploaded while they grow, and brought back."""

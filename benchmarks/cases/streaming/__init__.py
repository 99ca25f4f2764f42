"""Ranks that stream to a collector, and the merging of what they sent."""

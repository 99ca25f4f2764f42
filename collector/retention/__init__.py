"""Retention: which segments a collector deletes when its disk is full."""

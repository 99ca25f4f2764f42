"""Threads that run an event loop."""

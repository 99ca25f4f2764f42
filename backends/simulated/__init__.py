"""Backends that need no hardware: a simulated device, scripted events, and recordings that are replayed."""

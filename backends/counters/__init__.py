"""Counters that are read at a fixed rate, of the machine, the processor and NVIDIA devices. `counting.py` has the base classes."""
